"""A small model, its training step, and the comparison of gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


def data(rows: int = 64) -> tuple[Any, Any]:
    return torch.randn(rows, 32), torch.randint(0, 10, (rows,))


def net(dropout: float = 0.0) -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 10))


def step_of(model: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        loss: Any = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def gradients(model: Any) -> list[Any]:
    return [p.grad.clone() for p in model.parameters()]


def assert_same(a: list[Any], b: list[Any]) -> None:
    assert len(a) == len(b) and all(map(torch.equal, a, b))
