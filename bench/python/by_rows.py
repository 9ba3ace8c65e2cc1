"""Measures linear layers by rows: `linear-cross-entropy-by-rows` and `perceptron-by-rows`.

Each network is captured without both alternatives, with the first, and with both, in one process,
and planned at shares of plain training's peak. The last row of a capture asks for the smallest
budget that the planner finds. Peaks are above parameters, buffers and batch; times are the least of
several steps, in time of the processor, which does not count what other programs do. Both are over
those of plain eager training. The planned time is over the planned time of plain training, from the
same measurements. The time of the planner is in seconds of the processor, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial

import reprise
import torch
from networks import Embed, GptBlock, Network, gpt, of_modules
from side_by_side import plain
from stored_page import Page, arguments, steady_memory
from torch import nn
from written_out import Perceptrons, measure, usual_names

SHARES = (1.0, 0.5, 0.3, 0.2)
HEAD, PERCEPTRON = "linear-cross-entropy-by-rows", "perceptron-by-rows"


def long_gpt() -> Network:
    """Returns a GPT for a long context: the rows are many, the layers and classes few."""
    length, width, vocabulary = 2048, 256, 1024
    head = nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False), nn.Flatten(0, 1)
    )
    x, y = (torch.randint(0, vocabulary, (1, length)) for _ in range(2))
    blocks = [GptBlock(width) for _ in range(4)]
    return of_modules([Embed(vocabulary, width, length), *blocks, head], x, y.flatten())


def perceptrons() -> Network:
    """Returns perceptrons with a written-out GELU and a classifier."""
    x, y = torch.randn(2048, 256), torch.randint(0, 256, (2048,))
    return of_modules([Perceptrons(8, 256)], x, y)


NETWORKS: dict[str, Callable[[], Network]] = {
    "GPT, 4x256 tokens, 12 layers, 8192 classes": lambda: gpt(False),
    "perceptrons, written-out GELU, 2048 rows": perceptrons,
    "GPT, 1x2048 tokens, 4 layers, 1024 classes": long_gpt,
}


def rows() -> dict[str, list[str]]:
    """Returns the alternatives of each capture."""
    names = usual_names()
    return {
        "without both": [name for name in names if name != HEAD],
        "the head": names,
        "perceptrons too": [*names, PERCEPTRON],
    }


def plan(captured: reprise.CapturedStep, budget: int, seconds: float) -> tuple[float, reprise.Plan]:
    """Plans within the budget and returns how long that took, and the plan."""
    begin = time.process_time()
    result = captured.plan(budget=budget, time_limit=seconds)
    spent = time.process_time() - begin
    if result.plan is None:
        raise AssertionError("an answer without a plan raises an error")
    return spent, result.plan


def plan_smallest(
    captured: reprise.CapturedStep, budget: int, seconds: float
) -> tuple[float, reprise.Plan]:
    """Plans within the smallest budget that is found, from one below it on."""
    while True:
        try:
            return plan(captured, budget, seconds)
        except reprise.BudgetError as error:
            # A search that runs out of time may miss the plan that the one before it has found.
            budget = max(error.requested, budget + budget // 100)


def compare(name: str, repeats: int, seconds: float, say: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]()
    step = plain(network)
    parameters = list(network.module.parameters())

    def gradients() -> list[torch.Tensor]:
        return [p.grad.clone() for p in parameters if p.grad is not None]

    def drop() -> int:
        network.module.zero_grad()
        gc.collect()
        return reprise.live_bytes()

    least, peak = measure(network.module, step, repeats, time.process_time)
    drop()
    expected = [step(), *gradients()]
    say(f"\n## {name}\n")
    say(f"Plain training needs {peak / 1e6:.1f} MB and takes {least * 1e3:.0f} ms.\n")
    say("| by rows | asked | peak | time | planned | gap, % | planner, s | bits |")
    say("|---|--:|--:|--:|--:|--:|--:|---|")
    for row, names in rows().items():
        drop()
        captured = reprise.capture(
            lambda _: step(), network.x, modules=[network.module], alternatives=names
        )
        for share in (*SHARES, 0.0):
            floor = drop()
            asked = f"{share:.1f}" if share > 0 else "smallest"
            ask = plan if share > 0 else plan_smallest
            try:
                spent, found = ask(captured, floor + int(share * peak), seconds)
            except reprise.BudgetError:
                say(f"| {row} | {asked} | - | - | - | - | - | no plan |")
                continue
            taken, most = measure(
                network.module, partial(captured, network.x), repeats, time.process_time
            )
            drop()
            mine = [captured(network.x), *gradients()]
            same = len(mine) == len(expected) and all(map(torch.equal, mine, expected))
            planned = found.time_ns / found.baseline.time_ns
            gap = found.time_ns / found.lower_bound_ns - 1
            say(
                f"| {row} | {asked} | {most / peak:.3f} | {taken / least:.2f} | {planned:.3f} "
                f"| {100 * gap:.1f} | {spent:.1f} | {'equal' if same else 'differ'} |"
            )


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--time-limit", type=float, default=10.0, help="of the planner, in seconds")
    options = parser.parse_args()
    steady_memory()
    say = Page(options.output, "Linear layers by rows")
    for name in NETWORKS:
        compare(name, options.repeats, options.time_limit, say)


if __name__ == "__main__":
    main()
