"""Compares online mode with plain training, at shares of plain training's peak.

A step is forward, loss and backward of a network of networks.py, on one batch. The peak is what the
counting allocator saw during the step, with parameters, gradients and batch. Each row is the least
time of several steps; loss and gradients are compared bit by bit.
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

SHARES = (1.0, 0.8, 0.6, 0.5, 0.4)


def measure(network: Network, run: Callable[[], torch.Tensor], repeats: int) -> tuple[float, int]:
    """Returns the least time of a step in seconds, and the peak of the last one in bytes."""
    least = 0.0
    for repeat in range(repeats + 1):
        network.module.zero_grad()
        gc.collect()
        reprise.reset_peak()
        begin = time.perf_counter()
        run()
        seconds = time.perf_counter() - begin
        if repeat > 0:  # the first step fills caches
            least = min(least or seconds, seconds)
    return least, reprise.peak_bytes()


def results(network: Network, run: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    network.module.zero_grad()
    torch.manual_seed(1)
    loss = run()
    found = [p.grad.clone() for p in network.module.parameters() if p.grad is not None]
    network.module.zero_grad()
    return [loss, *found]


def compare(name: str, small: bool, repeats: int, say: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](small)
    step = plain(network)
    state = {key: value.clone() for key, value in network.module.state_dict().items()}
    expected = results(network, step)
    seconds, peak = measure(network, step, repeats)
    held = sum(one.numel() * one.element_size() for one in expected)
    own = peak - held  # `expected` is not part of a step
    say(f"\n## {name}\n")
    say(f"Plain training has a peak of {own / 1e6:.1f} MB and takes {seconds * 1e3:.0f} ms.\n")
    say("| budget | peak | time | evictions | operations that ran again | gradients |")
    say("|--:|--:|--:|--:|--:|---|")
    for share in SHARES:
        online = reprise.online(budget=held + int(own * share))

        def run(online: reprise.Online = online) -> torch.Tensor:
            with online:
                return step()

        try:
            network.module.load_state_dict(state)
            found = results(network, run)
            same = all(map(torch.equal, found, expected))
            del found
            taken, most = measure(network, run, repeats)
        except reprise.BudgetError:
            say(f"| {share:.1f} | - | - | - | - | no room |")
            continue
        report = online.report()
        again = f"{report.reruns} of {report.calls}"
        equal = "equal" if same else "**differ**"
        row = f"| {share:.1f} | {(most - held) / own:.3f} | {taken / seconds:.2f} "
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
    say("batch. The time is over plain training's.\n")
    say(f"- PyTorch {torch.__version__}, Reprise {reprise.__version__}")
    say(f"- {torch.get_num_threads()} thread(s), {platform.machine()}")
    for name in options.networks or NETWORKS:
        compare(name, options.small, options.repeats, say)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
