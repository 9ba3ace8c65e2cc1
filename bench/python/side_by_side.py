"""Compares Reprise with what users of PyTorch pick today, at equal measured peak.

Each network runs by plain training, torch.utils.checkpoint per stage, checkpoint_sequential, and
torch.compile(backend="aot_eager") with activation_memory_budget. Then it runs by Reprise in chain
and in graph mode, with the measured peaks of these ways as budgets, and with half of plain
training's. A peak is the memory that one step needs above parameters, buffers and batch, with
gradients, counted by Reprise's allocator. Freed pages stay mapped in every way. Times are the least
of some steps. Gradients are compared with plain training's, bit by bit.

    OMP_NUM_THREADS=1 python side_by_side.py [gpt unet ...] [-o FILE] [--repeats 5] [--small]
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from networks import NETWORKS, Network, Tensors
from stored_page import Page, arguments, steady_memory
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Step = Callable[[], Any]
Prepare = Callable[[Network], Step]

SEGMENTS = (2, 3, 4, 6, 8)
SAVED_SHARES = (0.5, 0.3, 0.1)
# Budgets from other tools' peaks that differ by less than this share of plain training's peak are
# one budget.
CLOSE = 0.03


@dataclass
class Row:
    tool: str
    asked: str
    peak: int = 0  # bytes above the level
    seconds: float = 0.0
    same: bool = False
    failed: str = ""
    smallest: int = 0  # bytes beyond the asked budget that a plan needs


class Bench:
    """Measures the rows of one network. Each trains a network of its own, from the same seed."""

    def __init__(self, make: Callable[[bool], Network], small: bool, repeats: int) -> None:
        self.make, self.small, self.repeats = make, small, repeats
        self.gradients: list[torch.Tensor] | None = None
        self.plain: Row | None = None

    def run(self, tool: str, asked: str, prepare: Prepare) -> Row:
        gc.collect()
        torch.manual_seed(0)
        network = self.make(self.small)
        row = Row(tool, asked)
        try:
            self.measure(row, network, prepare(network))
        except reprise.BudgetError as error:
            row.smallest = error.requested - error.budget
            row.failed = "no plan"
        except torch._dynamo.exc.BackendCompilerFailed as error:
            refusal = error.inner_exception
            if not isinstance(refusal, reprise.BudgetError):
                raise
            row.smallest = refusal.requested - refusal.budget
            row.failed = "no plan"
        except RuntimeError as error:
            row.failed = str(error).splitlines()[0][:100]
        self.plain = self.plain or row
        return row

    def measure(self, row: Row, network: Network, step: Step) -> None:
        parameters = list(network.module.parameters())
        held = [*parameters, *network.module.buffers(), network.x, network.y]
        level = sum((tensor.numel() * tensor.element_size() + 63) // 64 * 64 for tensor in held)
        own = [gradient for gradient in self.gradients or [] if gradient is not None]
        level += sum((tensor.numel() * tensor.element_size() + 63) // 64 * 64 for tensor in own)
        for repeat in range(self.repeats + 1):
            network.module.zero_grad()
            gc.collect()
            reprise.reset_peak()
            begin = time.perf_counter()
            step()
            seconds = time.perf_counter() - begin
            if repeat == 0:
                continue  # the first step fills caches and runs compilers
            row.seconds = min(row.seconds or seconds, seconds)
            row.peak = max(row.peak, reprise.peak_bytes() - level)
        gradients = [p.grad.clone() for p in parameters if p.grad is not None]
        if self.gradients is None:
            self.gradients = gradients
        row.same = all(map(torch.equal, gradients, self.gradients))


def through(network: Network, run: Callable[..., Tensors]) -> torch.Tensor:
    values: Tensors = (network.x,)
    for stage in network.stages:
        values = run(stage, *values)
    return values[-1]


def trained(network: Network, output: Callable[[], torch.Tensor]) -> Step:
    def step() -> torch.Tensor:
        loss = F.cross_entropy(output(), network.y)
        loss.backward()
        return loss.detach()

    return step


def plain(network: Network) -> Step:
    return trained(network, lambda: through(network, lambda stage, *values: stage(*values)))


def per_stage(network: Network) -> Step:
    def run(stage: Any, *values: torch.Tensor) -> Tensors:
        result: Tensors = checkpoint(stage, *values, use_reentrant=False)
        return result

    return trained(network, lambda: through(network, run))


def segments(count: int) -> Prepare:
    def prepare(network: Network) -> Step:
        functions = [lambda values, stage=stage: stage(*values) for stage in network.stages]

        def output() -> torch.Tensor:
            values = checkpoint_sequential(functions, count, (network.x,), use_reentrant=False)
            result: torch.Tensor = values[-1]
            return result

        return trained(network, output)

    return prepare


def compiled(share: float) -> Prepare:
    def prepare(network: Network) -> Step:
        import torch._functorch.config as config

        config.activation_memory_budget = share
        torch._dynamo.reset()
        forward = torch.compile(
            lambda: through(network, lambda stage, *values: stage(*values)), backend="aot_eager"
        )
        return trained(network, forward)

    return prepare


def chain_mode(above: int) -> Prepare:
    def prepare(network: Network) -> Step:
        first, *others = network.stages
        planned = reprise.remat(
            [first, *(lambda values, stage=stage: stage(*values) for stage in others)],
            network.x,
            budget=reprise.live_bytes() + above,
            module=network.module,
            output_held=False,
            loss=lambda out: F.cross_entropy(out[-1], network.y),
        )
        return trained(network, lambda: planned(network.x)[-1])

    return prepare


def graph_mode(above: int) -> Prepare:
    def prepare(network: Network) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            return plain(Network(network.module, network.stages, x, y))()

        budget = reprise.live_bytes() + above
        captured = reprise.capture(step, network.x, network.y, modules=[network.module])
        captured.plan(budget=budget)
        return lambda: captured(network.x, network.y)

    return prepare


def compile_backend(above: int) -> Prepare:
    def prepare(network: Network) -> Step:
        torch._dynamo.reset()
        held = [*network.module.parameters(), *network.module.buffers(), network.x, network.y]
        bytes_held = sum((one.numel() * one.element_size() + 63) // 64 * 64 for one in held)

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            same = Network(network.module, network.stages, x, y)
            return F.cross_entropy(through(same, lambda stage, *values: stage(*values)), y)

        planned = torch.compile(
            loss, backend=reprise.backend, options={"budget": bytes_held + above}, dynamic=False
        )

        def step() -> torch.Tensor:
            result = planned(network.x, network.y)
            result.backward()
            return result.detach()

        return step

    return prepare


def line(row: Row, plain_row: Row) -> str:
    if row.failed:
        more = f"; {row.smallest / plain_row.peak:.3f} more is enough" if row.smallest else ""
        return f"| {row.tool} | {row.asked} | - | - | {row.failed}{more} |"
    share, ratio = row.peak / plain_row.peak, row.seconds / plain_row.seconds
    same = "equal" if row.same else "**differ**"
    return f"| {row.tool} | {row.asked} | {share:.3f} | {ratio:.2f} | {same} |"


def compare(name: str, small: bool, repeats: int, say: Callable[[str], None]) -> None:
    bench = Bench(NETWORKS[name], small, repeats)
    first = bench.run("plain training", "", plain)
    say(f"\n## {name}\n")
    say(f"Plain training needs {first.peak / 1e6:.1f} MB and takes {first.seconds * 1e3:.0f} ms.\n")
    say("| tool | asked | peak | time | gradients |")
    say("|---|---|--:|--:|---|")
    marks = []

    def row(tool: str, asked: str, prepare: Prepare) -> Row:
        result = bench.run(tool, asked, prepare)
        say(line(result, first))
        return result

    marks.append(row("`checkpoint` per stage", "", per_stage))
    stages = len(NETWORKS[name](small).stages)
    for count in SEGMENTS:
        if count < stages:
            marks.append(row("`checkpoint_sequential`", f"{count} segments", segments(count)))
    for share in SAVED_SHARES:
        marks.append(row("`activation_memory_budget`", f"{share}", compiled(share)))
    budgets = [first.peak // 2]
    for peak in sorted(mark.peak for mark in marks if not mark.failed):
        if all(abs(peak - other) > CLOSE * first.peak for other in budgets):
            budgets.append(peak)
    for budget in sorted(budgets, reverse=True):
        asked = f"<= {budget / first.peak:.3f}"
        row("**Reprise**, chain mode", asked, chain_mode(budget))
        row("**Reprise**, graph mode", asked, graph_mode(budget))
        row("**Reprise**, `torch.compile`", asked, compile_backend(budget))


def main() -> None:
    options = arguments(__doc__, NETWORKS, repeats=5, small=True).parse_args()
    steady_memory()
    link = "[Benchmarks](../benchmarks.md#beside-pytorchs-own-tools) says how to read it."
    say = Page(options.output, "Beside PyTorch's own tools", link)
    for name in options.networks:
        compare(name, options.small, options.repeats, say)


if __name__ == "__main__":
    main()
