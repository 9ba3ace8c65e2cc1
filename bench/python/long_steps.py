"""Plans long steps: recurrent cells that are unrolled over a sequence.

For each number of cells the step is captured and planned at shares of plain training's peak, with a
short time limit for the planner. Then the planned step runs, and its bits are compared with plain
training's. "Height" is the size of the arena, and "live" the least that any placement needs.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import reprise
import torch
from stored_page import Page, arguments
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
    parser = arguments(__doc__)
    parser.add_argument("cells", nargs="*", type=int, default=[100, 630])
    parser.add_argument("--time-limit", type=float, default=3.0, help="seconds of the planner")
    options = parser.parse_args()
    torch.set_num_threads(1)
    link = "[Benchmarks](../benchmarks.md#long-steps) says what is measured."
    say = Page(options.output, "Plans of long steps", link)
    say(f"- Time limit of the planner: {options.time_limit} s\n")
    say(
        "| operations | capture, s | share of plain's peak | plan, s | predicted time over plain's "
        "| gap to the bound | measured peak, bytes | arena height over live | bits |"
    )
    say("|--:|--:|--:|--:|--:|--:|--:|--:|---|")
    for cells in options.cells:
        measure(cells, options.time_limit, say)


if __name__ == "__main__":
    main()
