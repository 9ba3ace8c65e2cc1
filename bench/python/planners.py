"""Every planner of chains, graphs and joins executes its plan: time, predicted and measured peak.

Planners of chains run a small GPT in chain mode, planners of graphs run the same GPT in graph mode,
and the planner of joins runs two towers. Planners that move values get a disk behind the device.
Each plans for a share of plain training's peak, the smallest of some at which it has a plan. Times
are the least of some steps, with a plain step beside each. Planners of pipelines need several
ranks; pipeline_time.py measures them.

    OMP_NUM_THREADS=1 PYTHONPATH=build/release/python python planners.py [chain dtr ...] [-o FILE]
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import reprise
import torch
from networks import Embed, GptBlock, next_tokens
from stored_page import Page, arguments, steady_memory
from torch import nn
from torch.nn import functional as F

SHARES = (70, 80, 90, 100)  # per cent of plain training's peak; the first with a plan
# These planners need a memory behind the device for what they do.
MOVING = {
    "block4",
    "double_checkpoint",
    "graph_levels",
    "levels",
    "offload_only",
    "pofo",
    "save_on_cpu",
}
# `devices` places runs on several devices, and the CPU is one.
ELSEWHERE = {"devices"}

Step = Callable[[], Any]


class Planned(NamedTuple):
    step: Step
    report: Callable[[], Any]  # of the last step
    plan: Callable[[], Any]
    module: nn.Module


class Size(NamedTuple):
    layers: int = 6
    width: int = 128
    length: int = 128
    batch: int = 8
    vocabulary: int = 1024


def gpt(size: Size) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, size.vocabulary))
    blocks = [GptBlock(size.width) for _ in range(size.layers)]
    model = nn.Sequential(Embed(size.vocabulary, size.width, size.length), *blocks, head)
    return model, *next_tokens(size.vocabulary, (size.batch, size.length), 1)


def loss_of(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(out.flatten(0, 1), y.flatten())


def plain(size: Size, planner: str) -> tuple[nn.Module, Step]:
    if planner == "join":
        towers, xs = two_towers(size)
        return towers, lambda: distance(*(t(x) for t, x in zip(towers, xs, strict=True))).backward()
    model, x, y = gpt(size)
    return model, lambda: loss_of(model(x), y).backward()


def in_chain_mode(size: Size, planner: str, budget: str, folder: str) -> Planned:
    model, x, y = gpt(size)
    planned = reprise.remat(
        model,
        x,
        budget=budget,
        planner=planner,
        loss=lambda out: loss_of(out, y),
        output_held=False,
        offload=f"disk:{folder}" if planner in MOVING else "",
    )

    def step() -> None:
        loss_of(planned(x), y).backward()

    return Planned(step, planned.report, lambda: planned.planned.plan, model)


def in_graph_mode(size: Size, planner: str, budget: str, folder: str) -> Planned:
    model, x, y = gpt(size)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model(x), y)
        loss.backward()
        return loss

    captured = reprise.capture(step, x, y)
    offload = f"disk:{folder}" if planner in MOVING else ""
    captured.plan(budget=budget, planner=planner, offload=offload)
    return Planned(lambda: captured(x, y), captured.report, lambda: captured.planned.plan, model)


def two_towers(size: Size) -> tuple[nn.ModuleList, list[torch.Tensor]]:
    torch.manual_seed(0)
    towers = nn.ModuleList(
        nn.Sequential(
            *(m for _ in range(depth) for m in (nn.Linear(size.width, size.width), nn.GELU()))
        )
        for depth in (size.layers, size.layers // 2)
    )
    return towers, [torch.randn(8 * size.length, size.width) for _ in towers]


def distance(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return (left - right).square().mean()


def with_branches(size: Size, planner: str, budget: str, folder: str) -> Planned:
    towers, xs = two_towers(size)
    planned = reprise.remat_join(
        dict(zip(("left", "right"), towers, strict=True)),
        xs,
        budget=budget,
        loss=lambda outputs: distance(*outputs),
        output_held=False,
    )
    return Planned(
        lambda: distance(*planned(*xs)).backward(),
        planned.report,
        lambda: planned.planned.plan,
        towers,
    )


def prepare(size: Size, planner: Any, folder: str) -> Planned:
    mode = with_branches
    if planner.chains and planner.name != "keep_all":
        mode = in_chain_mode
    elif planner.graphs:
        mode = in_graph_mode
    for share in SHARES[:-1]:
        try:
            return mode(size, planner.name, f"{share}%", folder)
        except reprise.BudgetError:
            gc.collect()
    return mode(size, planner.name, f"{SHARES[-1]}%", folder)


def measure(page: Page, size: Size, planner: Any, repeats: int) -> None:
    gc.collect()
    module, plain_step = plain(size, planner.name)
    with tempfile.TemporaryDirectory() as folder:
        planned = prepare(size, planner, folder)
        times: dict[str, float] = {}
        gradients: dict[str, list[bytes]] = {}  # not in tensors, which would count in the budget
        for repeat in range(repeats + 1):
            for name, owner, step in (
                ("plain", module, plain_step),
                ("planned", planned.module, planned.step),
            ):
                gc.collect()
                begin = time.perf_counter()
                step()
                taken = time.perf_counter() - begin
                if repeat > 0:  # the first step fills caches
                    times[name] = min(times.get(name, taken), taken)
                gradients[name] = [p.grad.numpy().tobytes() for p in owner.parameters()]
                owner.zero_grad()
        report, plan = planned.report(), planned.plan()
        peaks = (report.predicted_peak_bytes, report.measured_peak_bytes)
    bits = "equal" if gradients["plain"] == gradients["planned"] else "differ"
    share = plan.peak_bytes / plan.baseline.peak_bytes
    page(
        f"| `{planner.name}` | {100 * share:.1f} | {peaks[0]} "
        f"| {'the same' if peaks[0] == peaks[1] else peaks[1]} | {1000 * times['plain']:.1f} "
        f"| {1000 * times['planned']:.1f} | {times['planned'] / times['plain']:.2f} "
        f"| {plan.time_ns / plan.baseline.time_ns:.2f} | {bits} |"
    )


def main() -> None:
    rows = {
        p.name: p
        for p in reprise.planners()
        if (p.chains or p.graphs or p.joins) and p.name not in ELSEWHERE
    }
    parser = arguments(__doc__, list(rows), "planner", repeats=7, small=True)
    options = parser.parse_args()
    steady_memory()
    size = Size(2, 32, 32, 2, 64) if options.small else Size()
    page = Page(
        options.output,
        "Every planner executes its plan",
        "[Benchmarks](../benchmarks.md#every-planner) says what is measured, and how.",
        text=f"Budgets are the first of {SHARES} % of plain training's peak with a plan.",
    )
    page("")
    page(
        "| planner | peak, % of plain | predicted peak, B | measured | plain step, ms "
        "| planned, ms | ratio | predicted ratio | gradients |"
    )
    page("|---|--:|--:|--:|--:|--:|--:|--:|---|")
    for name in options.planners:
        measure(page, size, rows[name], options.repeats)


if __name__ == "__main__":
    main()
