"""Small models, and their steps on fake tensors, for the tests of fit()."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from conftest import SOURCE

torch = pytest.importorskip("torch")
from reprise._fit.fake_step import mode_of, record  # noqa: E402 - They need torch.
from torch import nn  # noqa: E402

_SPECIFICATION = importlib.util.spec_from_file_location(
    "llama_like", SOURCE / "examples" / "python" / "llama_like.py"
)
assert _SPECIFICATION is not None and _SPECIFICATION.loader is not None
llama_like: Any = importlib.util.module_from_spec(_SPECIFICATION)
_SPECIFICATION.loader.exec_module(llama_like)
Llama = llama_like.Llama

Case = tuple[nn.Module, tuple[Any, ...]]


def convolutions() -> Case:
    layers: list[nn.Module] = []
    for inputs in (3, 16, 16):
        layers += [nn.Conv2d(inputs, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 64, 10)), (torch.randn(32, 3, 8, 8),)


def perceptron() -> Case:
    layers = [part for _ in range(6) for part in (nn.Linear(64, 64), nn.Tanh(), nn.Dropout(0.1))]
    return nn.Sequential(*layers), (torch.randn(512, 64),)


def llama() -> Case:
    return Llama(width=32, layers=2, heads=2, hidden=64, words=97), (torch.randint(0, 97, (4, 32)),)


MODELS: dict[str, Callable[[], Case]] = {
    "convolutions": convolutions,
    "perceptron": perceptron,
    "llama": llama,
}


def step_of(model: nn.Module) -> Callable[..., Any]:
    def step(*inputs: Any) -> Any:
        loss = model(*inputs).float().square().mean()
        loss.backward()
        return loss.detach()

    return step


def one_ns(*_: Any) -> int:
    return 1


def recorded(model: nn.Module, inputs: tuple[Any, ...], step: Any = None) -> Any:
    """Returns the notes of a step on fake tensors, and leaves no gradients behind."""
    roles: dict[str, list[Any]] = {
        "parameter": list(model.parameters()),
        "buffer": list(model.buffers()),
        "sample": list(inputs),
    }
    step = step or step_of(model)
    run = record(lambda: step(*inputs), roles, [model], one_ns, mode_of(list(inputs)))
    model.zero_grad(set_to_none=True)
    return run
