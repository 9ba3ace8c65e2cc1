"""Compares online mode with plain training, at shares of plain training's peak.

A step is forward, loss and backward of a network of networks.py, on one batch. The peak is what the
counting allocator saw during the step, with parameters, gradients and batch. The times of a row are
the least of several steps, plain and online in turn; loss and gradients are compared bit by bit.
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable

import reprise
import torch
from networks import NETWORKS, Network
from side_by_side import keep_freed_pages, plain

SHARES = (1.0, 0.9, 0.8, 0.6, 0.5, 0.4)


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


def compare(name: str, small: bool, repeats: int, say: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](small)
    step = plain(network)
    buffers = [(b, image(b), b.dtype, b.shape) for b in network.module.buffers()]
    expected = results(network, step)
    ((seconds, peak),) = measure(network, [step], repeats)
    say(f"\n## {name}\n")
    say(f"Plain training has a peak of {peak / 1e6:.1f} MB and takes {seconds * 1e3:.0f} ms.\n")
    say("| budget | peak | time | evictions | operations that ran again | gradients |")
    say("|--:|--:|--:|--:|--:|---|")
    for share in SHARES:
        online = reprise.online(budget=int(peak * share))

        def run(online: reprise.Online = online) -> torch.Tensor:
            with online:
                return step()

        try:
            for buffer, data, dtype, shape in buffers:
                buffer.copy_(torch.frombuffer(bytearray(data), dtype=dtype).view(shape))
            same = results(network, run) == expected
            (beside, _), (taken, most) = measure(network, [step, run], repeats)
        except reprise.BudgetError:
            say(f"| {share:.1f} | - | - | - | - | no room |")
            continue
        report = online.report()
        again = f"{report.reruns} of {report.calls}"
        equal = "equal" if same else "**differ**"
        row = f"| {share:.1f} | {most / peak:.3f} | {taken / beside:.2f} "
        say(f"{row}| {report.evictions} | {again} | {equal} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("-o", "--output", help="the tables go to this file (Markdown), too")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--small", action="store_true", help="small ones, to see that it works")
    options = parser.parse_args()
    for name in options.networks:
        if name not in NETWORKS:
            parser.error(f"there is no network {name!r}; there are {', '.join(NETWORKS)}")
    lines: list[str] = []

    def say(text: str) -> None:
        print(text, flush=True)
        lines.append(text)

    keep_freed_pages()
    reprise.install_cpu_allocator()
    say("# Online mode\n")
    say("A program writes this file, so do not edit it. [Online mode](../online.md) says more.")
    say("This command writes the file again:\n")
    say("    OMP_NUM_THREADS=1 PYTHONPATH=build/release/python .venv/bin/python \\")
    say(f"      {' '.join(sys.argv)}\n")
    say("Budget and peak are shares of plain training's peak, with parameters, gradients and")
    say("batch. The time is over plain training's, with steps of both in turn.\n")
    say(f"- PyTorch {torch.__version__}, Reprise {reprise.__version__}")
    say(f"- {torch.get_num_threads()} thread(s), {platform.machine()}")
    for name in options.networks or NETWORKS:
        compare(name, options.small, options.repeats, say)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
