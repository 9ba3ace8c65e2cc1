"""Compares training whose ranks share out the work with training in which each rank does all of it.

Two processes of one thread train the same network on the same batches: a stack of perceptrons, or
a GPT. Each way does one step a round, so that all ways see the same machine. A captured step and
planned stages (chain mode) train within a share of plain training's peak, without and with shared
work. A peak is that of the bytes of a step on this rank; times are medians from barrier to barrier.

    torchrun --nproc-per-node 2 bench/python/shared_work.py --network perceptron --rounds 15
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import reprise
import torch
import torch.distributed as dist
from networks import plain_gpt
from torch import nn
from torch.nn import functional as F

WARM = 3
BITWISE = [a.name for a in reprise.alternatives() if a.in_graph and a.exactness == "bitwise"]


class Perceptron(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inside = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Any) -> Any:
        return x + self.inside(self.norm(x))


def perceptron() -> tuple[nn.Sequential, Any]:
    rows, width = 2048, 256
    net = nn.Sequential(*[Perceptron(width) for _ in range(4)])
    return net, torch.randn(rows, width, generator=torch.Generator().manual_seed(7))


def gpt() -> tuple[nn.Sequential, Any]:
    vocabulary, width, length, rows = 2048, 256, 128, 8
    ids = torch.randint(0, vocabulary, (rows, length), generator=torch.Generator().manual_seed(7))
    return plain_gpt(vocabulary, width, length, 4), ids


NETWORKS: dict[str, Callable[[], tuple[nn.Sequential, Any]]] = {
    "perceptron": perceptron,
    "gpt": gpt,
}


def loss_of(y: Any) -> Any:
    return F.log_softmax(y, -1)[..., 0].mean().neg()


def step_of(net: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        loss = loss_of(net(x))
        loss.backward()
        return loss

    return step


@dataclass
class Way:
    """One way to train the network.

    Attributes:
        call: Does a step and leaves gradients.
        plan: Plans for a budget in bytes. It may raise BudgetError.
        share: The budget of a step beside what was there, over plain training's peak.
        report: Says what the plan shares out, and what it predicts in nanoseconds.
    """

    net: nn.Module
    sample: Any
    call: Callable[[Any], Any]
    plan: Callable[[int | None], None] = lambda _: None
    share: float | None = None
    report: Callable[[], tuple[str, int]] = lambda: ("", 0)
    times: list[float] = field(default_factory=list)
    peak: int = 0

    def step(self) -> float:
        """Does one step from barrier to barrier, and returns its seconds."""
        gc.collect()
        reprise.reset_peak()
        before = reprise.live_bytes()
        dist.barrier()
        begin = time.perf_counter()
        self.call(self.sample)
        dist.barrier()
        seconds = time.perf_counter() - begin
        self.peak = reprise.peak_bytes() - before
        for parameter in self.net.parameters():
            parameter.grad = None
        return seconds


def made(network: str) -> tuple[nn.Sequential, Any]:
    torch.manual_seed(1)
    return NETWORKS[network]()


def plain(network: str) -> Way:
    net, sample = made(network)
    return Way(net, sample, step_of(net))


def captured(network: str, share: float | None, shared: bool, rounding: bool = False) -> Way:
    net, sample = made(network)
    options: dict[str, Any] = {"share_work": dist.group.WORLD} if shared else {}
    if rounding:
        options["alternatives"] = [*BITWISE, "shared-rows"]
    step: Any = reprise.capture(step_of(net), sample, lockstep="never", **options)

    def report() -> tuple[str, int]:
        runs = [a for a in step.planned.plan.actions if a.kind == "run"]
        parts = sum(a.variant.startswith("shared/") for a in runs)
        rows = sum(".shared" in a.id for a in runs)
        text = f"{parts} by parts, {rows} on own rows, of {len(runs)}" if shared else ""
        return text, step.planned.plan.time_ns

    def plan(budget: int | None) -> None:
        step.plan(budget=budget, time_limit=2)

    return Way(net, sample, step, plan, share, report)


def chain(network: str, share: float | None, shared: bool) -> Way:
    net, sample = made(network)
    options: dict[str, Any] = {"process_group": dist.group.WORLD} if shared else {}
    model: Any = reprise.remat(net, sample, loss=loss_of, output_held=False, **options)

    def report() -> tuple[str, int]:
        runs = [a for a in model.planned.plan.actions if a.kind == "run"]
        count = sum("shared" in a.variant for a in runs)
        return (f"{count} of {len(runs)} runs" if shared else ""), model.planned.plan.time_ns

    def plan(budget: int | None) -> None:
        model.set_budget(budget)
        model.plan_for(sample)

    return Way(net, sample, step_of(model), plan, share, report)


def ways_of(network: str, share: float) -> dict[str, Way]:
    ways = {"plain training": plain(network)}
    for within, text in ((None, "no limit"), (share, f"{share:.0%}")):
        ways[f"captured, {text}"] = captured(network, within, shared=False)
        ways[f"captured, {text}, `share_work`"] = captured(network, within, shared=True)
        ways[f"captured, {text}, `share_work`, `shared-rows`"] = captured(
            network, within, shared=True, rounding=True
        )
        if network == "perceptron":  # The layers of the GPT's blocks are no pairs of a stage.
            ways[f"stages, {text}"] = chain(network, within, shared=False)
            ways[f"stages, {text}, `process_group`"] = chain(network, within, shared=True)
    return ways


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--network", choices=sorted(NETWORKS), default="perceptron")
    asked.add_argument("--rounds", type=int, default=15)
    asked.add_argument("--share", type=float, default=0.5, help="of plain training's peak")
    arguments = asked.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()
    first = dist.get_rank() == 0
    ways = ways_of(arguments.network, arguments.share)
    for _ in range(WARM):
        ways["plain training"].step()
    peak = ways["plain training"].peak
    for key, way in list(ways.items()):
        gc.collect()
        budget = None if way.share is None else reprise.live_bytes() + int(way.share * peak)
        try:
            way.plan(budget)
        except reprise.BudgetError as error:
            needed = error.requested - reprise.live_bytes()
            if first:
                print(f"{key}: no plan; the smallest peak found is {needed / 2**20:.1f} MiB")
            del ways[key]
    for _ in range(WARM):
        for way in ways.values():
            way.step()
    for _ in range(arguments.rounds):
        for way in ways.values():
            way.times.append(way.step())
    if first:
        print("| way | peak of a step | predicted | step | runs that are shared |")
        print("|---|--:|--:|--:|---|")
        for key, way in ways.items():
            text, predicted = way.report()
            times = f"{predicted / 1e6:.0f} ms" if predicted else ""
            print(
                f"| {key} | {way.peak / 2**20:.1f} MiB | {times} "
                f"| {1e3 * statistics.median(way.times):.0f} ms | {text} |",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
