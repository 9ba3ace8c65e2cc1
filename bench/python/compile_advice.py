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
from collections.abc import Callable

import reprise
from compiled_steps import Bench, Row, knob, own_network
from networks import NETWORKS
from stored_page import Page, arguments, steady_memory

SHARES = (0.5, 0.3, 0.1)
# Budgets that differ by less than this share of the peak without recomputation are one budget.
CLOSE = 0.03


def compare(name: str, options: argparse.Namespace, say: Callable[[str], None]) -> None:
    bench = Bench(lambda: own_network(name, options.small), options.repeats)
    eager = bench.eager()
    compiler = options.compiler
    first = bench.compiled(Row("PyTorch's partitioner", ""), compiler)
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
        peaks.append(line(bench.compiled(row, compiler, inside=knob(share, "dp"))).peak)
        row = Row("the same with `knapsack()`", str(share))
        line(bench.compiled(row, compiler, inside=knob(share, reprise.knapsack())))
    budgets: list[int] = [first.peak // 2]
    for peak in sorted(peaks):
        if all(abs(peak - other) > CLOSE * first.peak for other in budgets):
            budgets.append(peak)
    for above in sorted(budgets, reverse=True):
        budget = bench.network().held() + above
        row = Row("**`compile_advice()`**", f"<= {above / eager.peak:.4f}")

        advice = reprise.compile_advice(budget=budget, observer=predicts(row))
        line(bench.compiled(row, compiler, inside=advice))
        row = Row("backend `reprise`", f"<= {above / eager.peak:.4f}")
        chosen = {"budget": above, "compiler": compiler, "observer": predicts(row)}
        line(bench.compiled(row, reprise.backend, chosen))


def predicts(row: Row) -> Callable[[reprise.AdvisedGraph | reprise.CompiledGraph], None]:
    def note(graph: reprise.AdvisedGraph | reprise.CompiledGraph) -> None:
        plan = graph.plan if isinstance(graph, reprise.AdvisedGraph) else graph.result.plan
        row.predicted = plan.peak_bytes if plan is not None else 0

    return note


def main() -> None:
    parser = arguments(__doc__, NETWORKS, repeats=3, small=True)
    parser.add_argument("--compiler", default="aot_eager", choices=["aot_eager", "inductor"])
    options = parser.parse_args()
    steady_memory()
    link = "[Benchmarks](../benchmarks.md#advice-to-pytorchs-partitioner) says how to read it."
    say = Page(options.output, "Advice to PyTorch's partitioner", link)
    say(f"- Compiler: {options.compiler}")
    for name in options.networks:
        compare(name, options, say)


if __name__ == "__main__":
    main()
