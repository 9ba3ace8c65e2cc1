"""Tensors of classes written in Python, such as DTensor, are refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
import reprise  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import (  # noqa: E402
    DTensor,
    Replicate,
    distribute_module,
    distribute_tensor,
)


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    store = distributed.HashStore()  # type: ignore[attr-defined]
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def net(*between: nn.Module) -> Any:
    return nn.Sequential(nn.Linear(8, 8), *between, nn.ReLU(), nn.Linear(8, 4))


class Counted(nn.Module):
    """The identity, which counts its calls."""

    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return x


def captured(model: Any, x: Any) -> Any:
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return reprise.capture(step, x)


WAYS: dict[str, Callable[[Any, Any], Any]] = {
    "remat": lambda model, x: reprise.remat(model, x),
    "profile": lambda model, x: reprise.profile(model, x),
    "capture": captured,
}


@pytest.mark.parametrize("way", WAYS)
def test_parameters(way: str, mesh: Any) -> None:
    counted = Counted()
    model = distribute_module(nn.Sequential(counted, *net()), mesh)
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    # The first complaint may be about the input, so the second model is given a plain one.
    with pytest.raises(reprise.InputError, match=r"input.*class written in Python.*to_local"):
        WAYS[way](model, x)
    with pytest.raises(reprise.InputError, match=r"parameter '.*weight'.*class written in Python"):
        WAYS[way](model, torch.randn(4, 8))
    assert counted.calls == 0


@pytest.mark.parametrize("way", WAYS)
def test_an_input_of_a_plain_model(way: str, mesh: Any) -> None:
    x = distribute_tensor(torch.randn(4, 8), mesh, [Replicate()])
    with pytest.raises(reprise.InputError, match=r"input.*class written in Python"):
        WAYS[way](net(), x)


class Wrap(nn.Module):
    def __init__(self, mesh: Any) -> None:
        super().__init__()
        self.mesh = mesh

    def forward(self, x: Any) -> Any:
        return DTensor.from_local(x, self.mesh, [Replicate()])


class Unwrap(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.to_local()


@pytest.mark.parametrize("way", WAYS)
def test_activations(way: str, mesh: Any) -> None:
    model = net(Wrap(mesh), nn.ReLU(), Unwrap())
    with pytest.raises(reprise.InputError, match=r"class written in Python"):
        WAYS[way](model, torch.randn(4, 8))


def test_an_input_of_a_captured_step(mesh: Any) -> None:
    x = torch.randn(4, 8)
    step = captured(net(), x)
    step(x)
    with pytest.raises(reprise.InputError, match=r"input 0.*class written in Python"):
        step(distribute_tensor(x, mesh, [Replicate()]))


def test_an_input_of_a_planned_model(mesh: Any) -> None:
    x = torch.randn(4, 8)
    model = reprise.remat(net(), x)
    with pytest.raises(reprise.InputError, match=r"input.*class written in Python"):
        model(distribute_tensor(x, mesh, [Replicate()]))
