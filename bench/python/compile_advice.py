"""Compares PyTorch's own partitioner under its own knob with the same partitioner under advice.

Each network is compiled with its loss by torch.compile and PyTorch's partitioner. The knob
`activation_memory_budget` runs at some shares with PyTorch's solver and with `reprise.knapsack()`.
Then `reprise.compile_advice()` and the backend `reprise` get the measured peaks of the first, and
half of the peak without recomputation, as their budgets. A peak is the memory that one step needs
above parameters, buffers and batch, with gradients, counted by Reprise's allocator. Times are those
of the processor, the least of some steps, so that other programs disturb them less. Gradients are
compared with those of plain eager training, bit by bit.

    OMP_NUM_THREADS=1 python compile_advice.py [gpt unet ...] [-o FILE] [--compiler inductor]
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from networks import NETWORKS, Network
from side_by_side import keep_freed_pages, plain, through
from torch._functorch import config as functorch
from torch.nn import functional as F

SHARES = (0.5, 0.3, 0.1)
# Budgets that differ by less than this share of the peak without recomputation are one budget.
CLOSE = 0.03


@dataclass
class Row:
    tool: str
    asked: str
    peak: int = 0  # bytes above the level
    predicted: int = 0
    seconds: float = 0.0
    compiling: float = 0.0  # seconds of the first step
    same: str = ""
    failed: str = ""


def whole_blocks(tensors: list[torch.Tensor]) -> int:
    return sum((one.numel() * one.element_size() + 63) // 64 * 64 for one in tensors)


class Bench:
    """Measures the rows of one network. Each trains a network of its own, from the same seed."""

    def __init__(self, make: Callable[[bool], Network], options: argparse.Namespace) -> None:
        self.make, self.options = make, options
        self.gradients: list[torch.Tensor] = []

    def network(self) -> Network:
        gc.collect()
        torch._dynamo.reset()
        torch.manual_seed(0)
        return self.make(self.options.small)

    def held(self, network: Network) -> int:
        module = network.module
        return whole_blocks([*module.parameters(), *module.buffers(), network.x, network.y])

    def eager(self) -> Row:
        network = self.network()
        row = Row("plain eager training", "")
        self.measure(row, network, plain(network))
        self.gradients = [one.grad for one in network.module.parameters() if one.grad is not None]
        row.same = "equal"
        return row

    def compiled(
        self, row: Row, inside: AbstractContextManager[Any], backend: Any, options: Any = None
    ) -> Row:
        network = self.network()
        module = network.module

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            same = Network(module, network.stages, x, y)
            return F.cross_entropy(through(same, lambda stage, *values: stage(*values)), y)

        compiled = torch.compile(loss, backend=backend, options=options, dynamic=False)

        def step() -> None:
            compiled(network.x, network.y).backward()

        try:
            with inside:
                self.measure(row, network, step)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            refusal = error.inner_exception
            if not isinstance(refusal, reprise.BudgetError):
                raise
            more = refusal.requested - refusal.budget
            row.failed = f"no plan; {more / 1e6:.1f} MB more is enough"
            return row
        found = [one.grad for one in module.parameters() if one.grad is not None]
        far = max(
            float((one - other).norm() / other.norm().clamp_min(1e-30))
            for one, other in zip(found, self.gradients, strict=True)
        )
        same = all(map(torch.equal, found, self.gradients))
        row.same = "equal" if same else f"within {far:.0e}"
        if row.predicted:
            row.predicted -= self.held(network)
        return row

    def measure(self, row: Row, network: Network, step: Callable[[], Any]) -> None:
        level = self.held(network) + whole_blocks(self.gradients)
        for repeat in range(self.options.repeats + 1):
            network.module.zero_grad()
            gc.collect()
            reprise.reset_peak()
            begin = time.process_time()
            step()
            seconds = time.process_time() - begin
            if repeat == 0:
                row.compiling = seconds
                continue
            row.seconds = min(row.seconds or seconds, seconds)
            row.peak = max(row.peak, reprise.peak_bytes() - level)


def knob(share: float, solver: Any) -> AbstractContextManager[Any]:
    patched: AbstractContextManager[Any] = functorch.patch(
        activation_memory_budget=share,
        activation_memory_budget_solver=solver,
        enable_autograd_cache=False,
    )
    return patched


def compare(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    bench = Bench(NETWORKS[name], options)
    eager = bench.eager()
    compiler = options.compiler
    first = bench.compiled(Row("PyTorch's partitioner", ""), nullcontext(), compiler)
    say(f"\n## {name}\n")
    say(f"Plain eager training needs {eager.peak / 1e6:.1f} MB and takes {eager.seconds:.2f} s.\n")
    say("| tool | asked | peak predicted | peak | time | first step | gradients |")
    say("|---|---|--:|--:|--:|--:|---|")

    def line(row: Row) -> Row:
        if row.failed:
            say(f"| {row.tool} | {row.asked} | - | - | - | - | {row.failed} |")
            return row
        predicted = f"{row.predicted / eager.peak:.4f}" if row.predicted else ""
        say(
            f"| {row.tool} | {row.asked} | {predicted} | {row.peak / eager.peak:.4f} | "
            f"{row.seconds / eager.seconds:.2f} | {row.compiling:.1f} s | {row.same} |"
        )
        return row

    line(first)
    peaks = []
    for share in SHARES:
        row = Row("`activation_memory_budget`", str(share))
        peaks.append(line(bench.compiled(row, knob(share, "dp"), compiler)).peak)
        row = Row("the same with `knapsack()`", str(share))
        line(bench.compiled(row, knob(share, reprise.knapsack()), compiler))
    budgets: list[int] = [first.peak // 2]
    for peak in sorted(peaks):
        if all(abs(peak - other) > CLOSE * first.peak for other in budgets):
            budgets.append(peak)
    for above in sorted(budgets, reverse=True):
        budget = bench.held(bench.network()) + above
        row = Row("**`compile_advice()`**", f"<= {above / eager.peak:.4f}")

        advice = reprise.compile_advice(budget=budget, observer=predicts(row))
        line(bench.compiled(row, advice, compiler))
        row = Row("backend `reprise`", f"<= {above / eager.peak:.4f}")
        chosen = {"budget": budget, "compiler": compiler, "observer": predicts(row)}
        line(bench.compiled(row, nullcontext(), reprise.backend, chosen))


def predicts(row: Row) -> Callable[[reprise.AdvisedGraph | reprise.CompiledGraph], None]:
    def note(graph: reprise.AdvisedGraph | reprise.CompiledGraph) -> None:
        plan = graph.plan if isinstance(graph, reprise.AdvisedGraph) else graph.result.plan
        row.predicted = plan.peak_bytes if plan is not None else 0

    return note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help=f"of {', '.join(NETWORKS)} (default: all)")
    parser.add_argument("-o", "--output", help="the tables go to this file (Markdown), too")
    parser.add_argument("--compiler", default="aot_eager", choices=["aot_eager", "inductor"])
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
    say("# Advice to PyTorch's partitioner\n")
    say("A program writes this file, so do not edit it.")
    say("[Benchmarks](../benchmarks.md#advice-to-pytorchs-partitioner) says how to read it.")
    say("This command writes the file again:\n")
    say("    OMP_NUM_THREADS=1 .venv/bin/python \\")
    say(f"      {' '.join(sys.argv)}\n")
    say(f"- PyTorch {torch.__version__}, Reprise {reprise.__version__}")
    say(f"- compiler {options.compiler}, {torch.get_num_threads()} thread, {platform.machine()}")
    for name in options.networks or NETWORKS:
        compare(name, options, say)
        if options.output:
            with open(options.output, "w", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
