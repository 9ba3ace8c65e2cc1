"""Checks what a captured step compares, and that looking at it leaves no trace."""

from __future__ import annotations

import random
import threading
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
numpy = pytest.importorskip("numpy")
import reprise  # noqa: E402
from small_steps import data, net, step_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


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


def test_an_explanation_says_what_is_compared_and_what_is_not() -> None:
    model = net()
    schedule = {"scale": 1.0}
    table = [1.0] * 70_000
    noise = numpy.zeros(200_000)
    stop = threading.Event()
    calls = [0]

    def step(x: Any, y: Any, rows: int = 4) -> Any:
        calls[0] += 1
        factor = table[0] + noise[0] + stop.is_set() + rows
        loss: Any = factor * schedule["scale"] * F.cross_entropy(model(x), y)
        if (x == x).all():
            loss.backward()
        return loss

    captured = reprise.capture(step, *data(), unguarded=["calls"])
    found = captured.explain()
    assert found.plan is None and found.steps == 0
    assert "schedule['scale']" in found.compared["containers"]
    assert {"rows", "step(rows=)", "step.__code__"} & set(found.compared["the function"])
    assert "model.2.p" in found.compared["modules and parameters"]
    assert "deterministic algorithms" in found.compared["settings"]
    assert {name for names in found.compared.values() for name in names} == set(captured.guards())
    assert [line.partition(":")[0] for line in found.unwatched] == ["noise", "stop", "table"]
    assert found.unguarded == ("calls",) and not any("calls" in name for name in captured.guards())
    assert len(found.host_reads) == 1 and found.host_reads[0].startswith("True, a number")
    assert (found.inputs, found.input_constants) == (2, 0)
    captured(*data())
    found = captured.explain()
    assert (found.steps, found.lockstep_steps) == (1, 1)
    assert (
        found.plan is not None and found.plan.peak_bytes == captured.report().predicted_peak_bytes
    )
    text = str(found)
    for words in ("schedule['scale']", "table: 70,000 items", "lockstep finds", "1 of 1 calls"):
        assert words in text
    assert "table: 70,000 items" in found._repr_html_()


def test_what_an_explanation_calls_unwatched_is_found_by_lockstep_alone() -> None:
    model = net()
    table = [1.0] * 70_000

    def step(x: Any, y: Any) -> Any:
        loss: Any = table[7] * F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    x, y = data()
    captured = reprise.capture(step, x, y)
    assert len(captured.explain().unwatched) == 1
    table[7] = 2.0
    with pytest.raises(reprise.InputError, match="Lockstep found this"):
        captured(x, y)
    unseen = reprise.capture(step, x, y, lockstep="never")
    table[7] = 3.0
    unseen(x, y)
    assert "nothing finds a change" in str(unseen.explain())


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


def test_the_wrapper_that_pytorch_puts_around_a_function_of_its_own_is_no_change() -> None:
    """The first use of PyTorch's compiler wraps `torch.manual_seed`, which does the same then."""
    model = net()
    plain = step_of(model)
    seeds = [False]

    def step(x: Any, y: Any) -> Any:
        if seeds[0]:
            torch.manual_seed(1)
        return plain(x, y)

    wrapped, inner = torch.manual_seed, torch.random.manual_seed
    torch.manual_seed = inner
    try:
        captured = reprise.capture(step, *data())
        captured(*data())
        torch.manual_seed = wrapped if wrapped is not inner else torch._disable_dynamo(inner)
        model.zero_grad()
        captured(*data())
        torch.manual_seed = lambda seed: inner(seed)
        model.zero_grad()
        with pytest.raises(reprise.errors.StepMiss, match=r"torch\.manual_seed"):
            captured(*data())
    finally:
        torch.manual_seed = wrapped


@pytest.mark.parametrize("name", ["linear", "cross_entropy"])
def test_a_function_of_pytorch_that_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of PyTorch call it, or the step, and the program puts its own in its place."""
    model = net()
    loss_of = nn.CrossEntropyLoss()

    def step(x: Any, y: Any) -> Any:
        loss: Any = loss_of(model(x), y)
        loss.backward()
        return loss

    captured = reprise.capture(step, *data(), lockstep="never")
    captured(*data())
    before = getattr(F, name)
    monkeypatch.setattr(F, name, lambda *a, **k: 2 * before(*a, **k))
    with pytest.raises(reprise.InputError, match=rf"torch.nn.functional.{name} was"):
        captured(*data())
    monkeypatch.undo()
    captured(*data())
