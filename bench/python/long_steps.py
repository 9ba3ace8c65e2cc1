"""Plans long steps: recurrent cells that are unrolled over a sequence.

For each number of cells the step is captured and planned at shares of plain training's peak, with a
short time limit for the planner. Then the planned step runs, and its bits are compared with plain
training's. "Height" is the size of the arena, and "live" the least that any placement needs.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import reprise
import torch
from run_info import measured
from torch import nn

SHARES = (0.9, 0.7, 0.5, 0.3)
HIDDEN = 64
ROWS = 32


class Cells(nn.Module):
    """An LSTM that is written cell by cell, with a layer behind the last one."""

    def __init__(self, cells: int) -> None:
        super().__init__()
        self.cells = cells
        self.gates = nn.Linear(2 * HIDDEN, 4 * HIDDEN)
        self.out = nn.Linear(HIDDEN, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_zeros(x.shape[0], HIDDEN)
        state = hidden
        for number in range(self.cells):
            gates = self.gates(torch.cat([x[:, number], hidden], 1))
            enter, keep, new, leave = gates.chunk(4, 1)
            state = keep.sigmoid() * state + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * state.tanh()
        out: torch.Tensor = self.out(hidden)
        return out


def gradients(model: nn.Module) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


def measure(cells: int, limit: float, say: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    model = Cells(cells)
    x, y = torch.randn(ROWS, cells, HIDDEN), torch.randint(0, 10, (ROWS,))

    def train(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.detach()

    loss, expected = train(x, y), gradients(model)
    begin = time.perf_counter()
    step = reprise.capture(train, x, y)
    captured = time.perf_counter() - begin
    graph = step.graph
    for share in SHARES:
        begin = time.perf_counter()
        try:
            result = step.plan(budget=f"{100 * share:.0f}%", time_limit=limit)
        except reprise.BudgetError:
            say(f"| {len(graph.ops)} | {captured:.1f} | {share:.1f} | none | | | | | |")
            continue
        seconds = time.perf_counter() - begin
        assert result.plan is not None
        for _ in range(4):  # The arena is planned after the first steps.
            model.zero_grad()
            again = step(x, y)
        same = torch.equal(loss, again)
        same &= all(map(torch.equal, expected, gradients(model)))
        report = step.report()
        over = result.plan.time_ns / result.plan.baseline.time_ns
        gap = result.plan.time_ns / max(1, result.lower_bound_ns) - 1
        say(
            f"| {len(graph.ops)} | {captured:.1f} | {share:.1f} | {seconds:.1f} | {over:.3f} "
            f"| {100 * gap:.1f} % | {report.measured_peak_bytes} "
            f"| {report.arena_height_bytes / max(1, report.arena_live_bytes):.4f} "
            f"| {'equal' if same else 'differ'} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cells", nargs="*", type=int, default=[100, 630])
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds of the planner")
    parser.add_argument("-o", "--output", help="the table as a file, beside the terminal")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[str] = []

    def say(line: str) -> None:
        print(line, flush=True)
        lines.append(line)

    say("# Plans of long steps\n")
    say("A program writes this file, so do not edit it.")
    say("[Benchmarks](../benchmarks.md#long-steps) says what is measured.")
    say("This command writes the file again:\n")
    say(f"    bench/python/long_steps.py {' '.join(sys.argv[1:])}\n")
    say(f"- {measured()}")
    say(f"- Time limit of the planner: {arguments.time_limit} s\n")
    say(
        "| operations | capture, s | share of plain's peak | plan, s | predicted time over plain's "
        "| gap to the bound | measured peak, bytes | arena height over live | bits |"
    )
    say("|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    for cells in arguments.cells:
        measure(cells, arguments.time_limit, say)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
