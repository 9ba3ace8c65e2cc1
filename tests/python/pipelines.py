"""Pipelines that tests train: the model, its parts, and the same training in one process."""

from __future__ import annotations

import copy
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import reprise
import torch
from reprise import _core
from torch import nn
from torch.nn import functional as F

TIMEOUT = 20.0  # of the groups, in seconds
MICRO, ROWS, WIDTH, STEPS = 4, 1024, 64, 2


class WithMask(nn.Module):
    """Hands over two tensors. The second one has no gradient."""

    def forward(self, x: Any) -> Any:
        return x, x > 0


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, pair: Any) -> Any:
        x, mask = pair
        return self.linear(torch.where(mask, x, 0.1 * x))


class Apply(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


def block() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))


def network() -> list[nn.Module]:
    """Eight stages that are modules: tokens come in, and scores go out."""
    torch.manual_seed(1)
    middle = [nn.Sequential(block(), nn.BatchNorm1d(WIDTH)), block(), WithMask(), Masked()]
    first, last = nn.Embedding(97, WIDTH), nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 97))
    return [first, block(), *middle, block(), last]


def batch() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randint(0, 97, (ROWS,), generator=generator)
    return x, torch.randint(0, 97, (ROWS,), generator=generator)


def loss_of(scores: Any, target: Any) -> Any:
    return F.cross_entropy(scores, target, reduction="sum") / ROWS


def parts_of(stages: list[nn.Module], rank: int, size: int, each: int) -> list[nn.Sequential]:
    """Returns the parts of a rank that has `each` of them."""
    long = len(stages) // (size * each)
    first = [long * (rank + size * k) for k in range(each)]
    return [nn.Sequential(*stages[f : f + long]) for f in first]


def optimizer_of(modules: Any) -> Any:
    return torch.optim.AdamW([p for m in modules for p in m.parameters()], lr=1e-2)


def assert_equal(a: Any, b: Any) -> None:
    assert len(a) == len(b)
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one, other)


def images(modules: Any, gradients: bool) -> list[Any]:
    """Returns copies of parameters, gradients and buffers."""
    found = [t for m in modules for t in [*m.parameters(), *m.buffers()]]
    if gradients:
        found += [p.grad for m in modules for p in m.parameters()]
    return [t.detach().clone() for t in found]


def accumulate(stages: list[nn.Module], rank: int, size: int, each: int) -> list[list[Any]]:
    """Trains the whole model in one process. Returns what each step leaves of the rank's parts."""
    whole = nn.Sequential(*copy.deepcopy(stages))
    mine = parts_of(list(whole), rank, size, each)
    optimizer = optimizer_of([whole])
    x, y = batch()
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        losses = []
        for a, b in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
            loss = loss_of(whole(a), b)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        found.append([torch.stack(losses), *images(mine, True)])
    return found


def made(rank: int, parts: Any, size: int = 2, **options: Any) -> Any:
    x, y = batch()
    rows = ROWS // MICRO
    return reprise.pipeline(
        parts,
        x[:rows] if rank == 0 else None,
        micro_batches=options.pop("micro_batches", MICRO),
        loss=options.pop("loss", loss_of),
        target=y[:rows].clone() if rank == size - 1 else None,
        time_limit=options.pop("time_limit", 0.3),
        **options,
    )


def run(step: Any, rank: int, size: int = 2, rows: int = ROWS) -> Any:
    x, y = batch()
    inputs = (x[:rows],) if rank == 0 else ()
    return step.step(*inputs, target=y[:rows] if rank == size - 1 else None)


def assert_bytes(step: Any) -> None:
    report = step.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    assert report.budget_bytes is None or report.measured_peak_bytes <= report.budget_bytes


def runs_again(step: Any) -> int:
    """Returns how many runs of stages the plan makes beyond the first ones."""
    parts = step.plan["parts"]
    runs = [p["forward"] + p["backward"] for part in parts for p in part["plans"]]
    ops = [[op for op, _ in one] for one in runs]
    return sum(len(one) - len(set(one)) for one in ops)


def train(
    rank: int, stages: list[nn.Module], expected: list[Any], each: int, size: int, **options: Any
) -> Any:
    """Trains in parts, and compares each step with one process to the last bit."""
    parts = parts_of(copy.deepcopy(stages), rank, size, each)
    step = made(rank, parts, size, **options)
    optimizer = optimizer_of(parts)
    for number in range(STEPS):
        optimizer.zero_grad()
        losses = run(step, rank, size)
        assert (losses is not None) == (rank == size - 1)
        assert_bytes(step)
        optimizer.step()
        if losses is not None:
            assert_equal([losses], expected[number][:1])
        assert_equal(images(parts, True), expected[number][1:])
    with tempfile.TemporaryDirectory() as name:
        problem, plan = pathlib.Path(name, "problem.json"), pathlib.Path(name, "plan.json")
        step.save(problem, plan)
        assert _core.verify_pipeline(problem.read_text(), plan.read_text()) == ""
        slower = problem.read_text().replace('"micro_batches": 4', '"micro_batches": 5')
        assert "micro-batch" in _core.verify_pipeline(slower, plan.read_text())
    return step
