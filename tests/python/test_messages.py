"""What cannot be done is refused by its name, and objects may answer as they like."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from torch import nn  # noqa: E402

X = torch.randn(32, 16)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))


def step_of(model: Any) -> Any:
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    return step


def test_a_planned_model_in_a_capture() -> None:
    planned = reprise.remat(network(), X)
    with pytest.raises(reprise.InputError, match="calls a planned model"):
        reprise.capture(step_of(planned), X)
    step_of(planned)(X)


def runs_as_plain(net: Any) -> None:
    """Each call of a step with a budget gives the loss of the plain step."""
    twin: Any = copy.deepcopy(net)
    step = reprise.train_step(step_of(net), X, budget="110%")
    for _ in range(4):
        assert torch.equal(step(X), step_of(twin)(X))
        net.zero_grad()
        twin.zero_grad()


def test_a_scripted_module_runs_and_is_named_in_a_capture() -> None:
    scripted: Any = torch.jit.script(network())
    with pytest.raises(reprise.InputError, match=r"model is a module of torch\.jit\.script"):
        reprise.capture(step_of(scripted), X)
    runs_as_plain(scripted)


def test_a_batch_norm_that_counts_its_batches() -> None:
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16, momentum=None))
    with pytest.raises(reprise.InputError, match="the batch norm 1 has momentum=None"):
        reprise.capture(step_of(net), X)
    runs_as_plain(net)


@pytest.mark.parametrize("moved", ["offload_optimizer", "offload_parameters"])
def test_a_memory_that_may_not_be_there(moved: str) -> None:
    net = network()
    optimizer = torch.optim.AdamW(net.parameters())
    step = reprise.capture(step_of(net), X, optimizer=optimizer)
    options: dict[str, Any] = {moved: True}
    with pytest.raises(reprise.InputError, match='"auto" may take none: name it'):
        step.plan(offload="auto", **options)


def test_the_wrapper_for_several_processes(tmp_path: pathlib.Path) -> None:
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/f", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(network())
        with pytest.raises(reprise.InputError, match="process_group="):
            reprise.capture(step_of(wrapped), X)
    finally:
        distributed.destroy_process_group()


class Closed:
    """It answers every question by an exception, even that for its class."""

    def __init__(self) -> None:
        self.net = network()

    def __getattribute__(self, name: str) -> Any:
        if name in ("net", "step"):
            return object.__getattribute__(self, name)
        raise RuntimeError(f"no {name} here")

    def step(self, x: Any) -> Any:
        return step_of(self.net)(x)


class Strict:
    """It raises what no attribute access should raise."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.parametrize("kind", ["method", "closure", "strict"])
def test_objects_that_raise_what_they_like(kind: str) -> None:
    closed, strict, net = Closed(), Strict(), network()

    def with_object(x: Any) -> Any:
        loss = net(x).square().mean()
        if (strict if kind == "strict" else closed) is None:
            loss = 2 * loss
        loss.backward()
        return loss.detach()

    function = closed.step if kind == "method" else with_object
    captured = reprise.capture(function, X)
    captured(X)
    for mode in ("auto", "graph"):
        step = reprise.train_step(function, X, budget="110%", mode=mode)
        for _ in range(3):
            step(X)
            closed.net.zero_grad()
            net.zero_grad()
        assert step.mode == ("follow" if mode == "auto" else mode)
