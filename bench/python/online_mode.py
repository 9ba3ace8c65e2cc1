"""Compares online mode with plain training, at shares of plain training's peak.

A step is forward, loss and backward of a network, on one batch. The peak is what the counting
allocator saw during the step, with parameters, gradients and batch. The times of a row are the
least of several steps: plain, online without plans, and online with a plan, in turn. Loss and
gradients are compared bit by bit.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable

import reprise
import torch
from networks import NETWORKS as COMMON
from networks import Network, resnet
from side_by_side import plain
from stored_page import Page, arguments, steady_memory
from torch import nn

SHARES = (1.0, 0.9, 0.8, 0.6, 0.5, 0.4)
STEPS_UNTIL_PLANNED = 8  # at most
PLAN_SECONDS = 2.0


def deep_resnet(small: bool) -> Network:
    """Returns a narrow ResNet of 16 basic blocks, most of whose memory is activations."""
    return resnet((1, 1), False, 4) if small else resnet((8, 8), False, 32)


class TreeLstm(nn.Module):
    """A binary TreeLSTM (Tai, Socher and Manning 2015) over a balanced tree of vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 5 * width)
        self.head = nn.Linear(width, 100)

    def follow(self, leaves: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if leaves.shape[0] == 1:
            return leaves[0].tanh(), torch.zeros_like(leaves[0])
        half = leaves.shape[0] // 2
        left, left_cell = self.follow(leaves[:half])
        right, right_cell = self.follow(leaves[half:])
        gates = self.gates(torch.cat([left, right], 1))
        enter, keep_left, keep_right, leave, new = gates.chunk(5, 1)
        cell = enter.sigmoid() * new.tanh()
        cell = cell + keep_left.sigmoid() * left_cell + keep_right.sigmoid() * right_cell
        return leave.sigmoid() * cell.tanh(), cell

    def forward(self, leaves: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.follow(leaves)[0])
        return result


def tree_lstm(small: bool) -> Network:
    leaves, batch, width = (8, 16, 16) if small else (64, 128, 128)
    module = TreeLstm(width)
    x, y = torch.randn(leaves, batch, width), torch.randint(0, 100, (batch,))
    return Network(module, [lambda value: (module(value),)], x, y)


NETWORKS = {**COMMON, "deep_resnet": deep_resnet, "tree_lstm": tree_lstm}


def measure(
    network: Network, runs: list[Callable[[], torch.Tensor]], repeats: int
) -> list[tuple[float, int]]:
    """Returns the least time in seconds and the last peak in bytes of each step. They alternate."""
    least = [(0.0, 0)] * len(runs)
    for repeat in range(repeats + 1):
        for number, run in enumerate(runs):
            network.module.zero_grad()
            gc.collect()
            reprise.reset_peak()
            begin = time.perf_counter()
            run()
            seconds = time.perf_counter() - begin
            before = least[number][0]
            if repeat > 0:  # the first step fills caches
                least[number] = min(before or seconds, seconds), reprise.peak_bytes()
    return least


def image(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a tensor in memory that no budget counts."""
    return tensor.detach().numpy().tobytes()


def results(network: Network, run: Callable[[], torch.Tensor]) -> list[bytes]:
    network.module.zero_grad()
    torch.manual_seed(1)
    loss = image(run())
    found = [image(p.grad) for p in network.module.parameters() if p.grad is not None]
    network.module.zero_grad()
    return [loss, *found]


def compare(
    name: str, small: bool, repeats: int, shares: list[float], say: Callable[[str], None]
) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](small)
    step = plain(network)
    buffers = [(b, image(b), b.dtype, b.shape) for b in network.module.buffers()]
    expected = results(network, step)
    ((seconds, peak),) = measure(network, [step], repeats)
    say(f"\n## {name}\n")
    say(f"Plain training has a peak of {peak / 1e6:.1f} MB and takes {seconds * 1e3:.0f} ms.\n")
    say("| budget | peak | without plans | re-runs | planned | re-runs | planning | gradients |")
    say("|--:|--:|--:|--:|--:|--:|--:|---|")
    for share in shares:
        budget = int(peak * share)
        modes = [
            reprise.online(budget=budget, plan_after=0),
            reprise.online(
                budget=budget, plan_after=1, time_limit=PLAN_SECONDS, planning_share=math.inf
            ),
        ]
        runs = [inside(online, step) for online in modes]
        try:
            for buffer, data, dtype, shape in buffers:
                buffer.copy_(torch.frombuffer(bytearray(data), dtype=dtype).view(shape))
            same = results(network, runs[0]) == expected
            planning = learn(network, modes[1], runs[1])
            for buffer, data, dtype, shape in buffers:
                buffer.copy_(torch.frombuffer(bytearray(data), dtype=dtype).view(shape))
            same = same and results(network, runs[1]) == expected
            (beside, _), *measured = measure(network, [step, *runs], repeats)
        except reprise.BudgetError:
            say(f"| {share:.1f} | - | - | - | - | - | - | no room |")
            continue
        row = f"| {share:.1f} | {max(most for _, most in measured) / peak:.3f} "
        for online, (taken, _) in zip(modes, measured, strict=True):
            report = online.report()
            if online is modes[1] and not report.planned:
                row += f"| {report.why_not_planned} | - "
            else:
                row += f"| {taken / beside:.2f} | {report.reruns} of {report.calls} "
        say(f"{row}| {planning:.1f} s | {'equal' if same else '**differ**'} |")


def inside(online: reprise.Online, step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def run() -> torch.Tensor:
        with online:
            return step()

    return run


def learn(network: Network, online: reprise.Online, run: Callable[[], torch.Tensor]) -> float:
    """Runs steps until they are planned. Returns the seconds of planning."""
    seconds = 0.0
    for _ in range(STEPS_UNTIL_PLANNED):
        network.module.zero_grad()
        run()
        report = online.report()
        seconds += report.planning_time_ns / 1e9
        if report.planned and report.planning_time_ns == 0:
            break
    return seconds


ABOUT = """\
Budget and peak are shares of plain training's peak, with parameters, gradients and
batch. Times are over plain training's, with steps of all kinds in turn. A planned step
follows the plan that was made of the steps before it; planning is the time for that."""


def main() -> None:
    parser = arguments(__doc__, NETWORKS, repeats=3, small=True)
    parser.add_argument("--shares", type=float, nargs="+", default=SHARES, help="of plain's peak")
    options = parser.parse_args()
    steady_memory()
    say = Page(options.output, "Online mode", "[Online mode](../online.md) says more.", text=ABOUT)
    for name in options.networks:
        compare(name, options.small, options.repeats, options.shares, say)


if __name__ == "__main__":
    main()
