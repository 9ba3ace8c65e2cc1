"""Measures compiled training steps: their peaks, their times, and whether gradients are equal.

A peak is the memory that one step needs above parameters, buffers and batch, with gradients. It is
counted by Reprise's allocator. Times are those of the processor, the least of some steps, so that
other programs disturb them less. Gradients are compared with those of plain eager training, bit by
bit.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from networks import NETWORKS, Network
from side_by_side import through
from torch._functorch import config as functorch
from torch.nn import functional as F


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


@dataclass
class Trained:
    """A network with its batch and the loss of a step."""

    module: torch.nn.Module
    batch: list[torch.Tensor]
    loss: Callable[..., torch.Tensor]

    def held(self) -> int:
        """Returns the bytes that are there before a step."""
        return whole_blocks([*self.module.parameters(), *self.module.buffers(), *self.batch])


def own_network(name: str, small: bool = False) -> Trained:
    """Returns one of Reprise's networks with the loss of a classifier."""
    network = NETWORKS[name](small)
    module, stages = network.module, network.stages

    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        same = Network(module, stages, x, y)
        return F.cross_entropy(through(same, lambda stage, *values: stage(*values)), y)

    return Trained(module, [network.x, network.y], loss)


class Bench:
    """Measures the rows of one network. Each trains a network of its own, from the same seed."""

    def __init__(self, make: Callable[[], Trained], repeats: int) -> None:
        self.make, self.repeats = make, repeats
        self.gradients: list[torch.Tensor] = []

    def network(self) -> Trained:
        gc.collect()
        torch._dynamo.reset()
        torch.manual_seed(0)
        return self.make()

    def eager(self) -> Row:
        trained = self.network()
        row = Row("plain eager training", "")
        self.measure(row, trained, trained.loss)
        self.gradients = [p.grad for p in trained.module.parameters() if p.grad is not None]
        row.same = "equal"
        return row

    def compiled(self, row: Row, backend: Any, options: Any = None, inside: Any = None) -> Row:
        """Measures a compiled step. A budget in the options is one above what is there before."""
        trained = self.network()
        if options is not None:
            options = {**options, "budget": trained.held() + int(options["budget"])}
        compiled = torch.compile(trained.loss, backend=backend, options=options, dynamic=False)
        context: AbstractContextManager[Any] = inside or nullcontext()
        try:
            with context:
                self.measure(row, trained, compiled)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            refusal = error.inner_exception
            if not isinstance(refusal, reprise.BudgetError):
                raise
            more = refusal.requested - refusal.budget
            row.failed = f"no plan; {more / 1e6:.1f} MB more is enough"
            return row
        found = [p.grad for p in trained.module.parameters() if p.grad is not None]
        pairs = list(zip(found, self.gradients, strict=True))
        far = max(float((a - b).norm() / b.norm().clamp_min(1e-30)) for a, b in pairs)
        row.same = "equal" if all(torch.equal(a, b) for a, b in pairs) else f"within {far:.0e}"
        if row.predicted:
            row.predicted -= trained.held()
        return row

    def measure(self, row: Row, trained: Trained, loss: Callable[..., torch.Tensor]) -> None:
        level = trained.held() + whole_blocks(self.gradients)
        for repeat in range(self.repeats + 1):
            trained.module.zero_grad()
            gc.collect()
            torch.manual_seed(1)
            reprise.reset_peak()
            begin = time.process_time()
            loss(*trained.batch).backward()
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
