"""Checks what a captured step compares, and that looking at it leaves no trace."""

from __future__ import annotations

import random
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from small_steps import data, net, step_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")


def test_the_names_are_those_of_the_program() -> None:
    model = net()
    schedule = {"scale": 1.0}

    def step(x: Any, y: Any) -> Any:
        loss: Any = schedule["scale"] * F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    names = reprise.capture(step, *data()).guards()
    assert "schedule['scale']" in names
    assert "model.training" in names


def test_looking_at_an_iterator_of_tensors_adds_no_operation() -> None:
    model = net()
    plain = step_of(model)
    waiting = iter([torch.ones(2, 3), torch.zeros(4)])

    def step(x: Any, y: Any) -> Any:
        return plain(x, y) if waiting is not None else None

    x, y = data()
    ops = [op.id for op in reprise.capture(plain, x, y).graph.ops]
    assert [op.id for op in reprise.capture(step, x, y).graph.ops] == ops


def test_a_refused_capture_puts_the_generators_back() -> None:
    plain = step_of(net())

    def step(x: Any, y: Any) -> Any:
        random.random()
        return plain(x, y)

    random.seed(5)
    before = random.getstate()
    with pytest.raises(reprise.InputError, match="takes something from random"):
        reprise.capture(step, *data())
    assert random.getstate() == before


def test_a_name_that_is_unguarded_may_change() -> None:
    model = net()
    calls = [0]
    plain = step_of(model)

    def step(x: Any, y: Any) -> Any:
        calls[0] += 1
        return plain(x, y)

    with pytest.raises(reprise.InputError, match=r"each call changes calls\[0\]"):
        reprise.capture(step, *data())
    captured = reprise.capture(step, *data(), unguarded=["calls"])
    calls[0] = 100
    captured(*data())


def test_a_weak_proxy_of_a_module_is_no_module_to_watch() -> None:
    """Lightning's modules reach a proxy of themselves by their trainer."""
    model = nn.Sequential(nn.Linear(4, 4))
    holder = {"model": weakref.proxy(model)}

    def step(x: Any) -> Any:
        loss = holder["model"](x).square().mean()
        loss.backward()
        return loss.detach()

    captured = reprise.capture(step, torch.randn(8, 4), modules=[model])
    x = torch.randn(8, 4)
    assert torch.equal(captured(x), model(x).square().mean())
