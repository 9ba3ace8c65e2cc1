"""Lockstep beside steps of many kinds: it finds nothing where nothing has changed."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="the runtime needs PyTorch")
pytest.importorskip("numpy", reason="some programs use NumPy")
import reprise
import torch
from models import assert_same_bits
from models import state_of as bits_of
from test_lockstep import Net, World
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def without_history(result: Any) -> Any:
    """Returns the result with tensors as a captured step returns them."""
    if isinstance(result, dict):
        return {key: without_history(value) for key, value in result.items()}
    return result.detach() if isinstance(result, torch.Tensor) else result


def both(step_of: Callable[[Any], Callable[..., Any]], calls: int = 5, **options: Any) -> None:
    """Trains a net plainly and captured, compared at each call, and compares all bits."""
    torch.manual_seed(1)
    plain, net = Net(), Net()
    net.load_state_dict(plain.state_dict())
    inputs = [torch.randn(8, 16) for _ in range(calls)]
    captured = reprise.capture(step_of(net), inputs[0], lockstep="always", **options)
    expected = step_of(plain)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.05) for model in (plain, net)]
    for call, x in enumerate(inputs):
        results: list[Any] = []
        for function in (expected, captured):
            torch.manual_seed(call)
            results.append(without_history(function(x)))
        assert str(results[0]) == str(results[1])
        for p, q in zip(plain.parameters(), net.parameters(), strict=True):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None and q.grad is not None:
                assert torch.equal(p.grad, q.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert_same_bits(bits_of(plain), bits_of(net))
    assert captured.report().compared == calls
    assert not captured.differences


def test_a_number_that_is_only_returned() -> None:
    def step_of(net: Net) -> Callable[..., Any]:
        def step(x: Any) -> Any:
            loss = net(x).square().mean()
            loss.backward()
            return {"loss": loss, "number": loss.item(), "name": "train"}

        return step

    both(step_of)


def test_a_checkpoint_inside_the_step() -> None:
    def step_of(net: Net) -> Callable[..., Any]:
        def step(x: Any) -> Any:
            hidden: Any = checkpoint(net.first, x, use_reentrant=False)
            loss = net.last(hidden.tanh()).square().mean()
            loss.backward()
            return loss

        return step

    both(step_of)


def test_host_reads_go_the_way_of_the_call() -> None:
    def step_of(net: Net) -> Callable[..., Any]:
        def step(x: Any) -> Any:
            hidden = net(x)
            if hidden.sum() > 0:
                hidden = hidden * 2
            rows = int((x[:, 0] > 0).sum())
            loss = hidden[:rows].square().mean() + hidden.mean()
            loss.backward()
            return loss

        return step

    both(step_of, calls=12, on_miss="recapture", outcomes=30)


def test_gradients_literals_and_masks() -> None:
    def step_of(net: Net) -> Callable[..., Any]:
        def step(x: Any) -> Any:
            net.zero_grad()
            weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
            logits = net(x) * weights + torch.arange(4) / 4
            logits = logits.masked_fill(torch.triu(torch.ones(8, 4), 1).bool(), -1.0)
            loss: Any = F.cross_entropy(logits, torch.tensor([0, 1, 2, 3] * 2))
            loss.backward()
            nn.utils.clip_grad_value_(net.parameters(), 0.1)
            return loss

        return step

    both(step_of)


def test_an_optimizer_in_the_step() -> None:
    torch.manual_seed(1)
    plain, net = Net(), Net()
    net.load_state_dict(plain.state_dict())
    scale = ctypes.c_double(1.0)

    def step_of(model: Any) -> Callable[..., Any]:
        def step(x: Any) -> Any:
            loss = (model(x) * scale.value).square().mean()
            loss.backward()
            return loss

        return step

    x = torch.randn(8, 16)
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
    plain_sgd = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9, foreach=False)
    captured = reprise.capture(step_of(net), x, optimizer=sgd, lockstep="always")
    for call in range(4):
        torch.manual_seed(call)
        loss = captured(x)
        torch.manual_seed(call)
        assert torch.equal(loss, step_of(plain)(x))
        plain_sgd.step()
        plain_sgd.zero_grad()
        assert_same_bits(bits_of(plain), bits_of(net))
    scale.value = 2.0
    before = bits_of(net)
    with pytest.raises(reprise.errors.StepMiss, match=r"gives 2"):
        captured(x)
    assert_same_bits(before, bits_of(net))
    assert captured.report().compared == 4


@pytest.mark.parametrize("with_body", [False, True])
def test_micro_batches(with_body: bool) -> None:
    net, scale = Net(), ctypes.c_double(1.0)

    def body(x: Any) -> Any:
        return net.norm(net.first(x))

    def tail(x: Any, share: float) -> Any:
        loss = share * net.last(x if with_body else net.first(x)).square().mean() * scale.value
        loss.backward()
        return loss.detach()

    x = torch.randn(8, 16)
    step = reprise.micro_batches(
        tail, x, body=body if with_body else None, parts=[2], lockstep="always"
    )
    for _ in range(3):
        net.zero_grad()
        step(x)
    assert step.report().compared == 3
    scale.value = 0.5
    net.zero_grad()
    with pytest.raises(reprise.errors.StepMiss, match=r"test_lockstep_steps\.py:\d+.*gives 0\.5"):
        step(x)


def test_train_step_says_what_was_found_and_goes_on() -> None:
    torch.manual_seed(1)
    net, scale = Net().eval(), ctypes.c_double(1.0)

    def train(x: Any) -> Any:
        net.zero_grad()
        loss = (net(x) * scale.value).square().mean()
        loss.backward()
        return loss

    x = torch.randn(8, 16)
    step = reprise.train_step(train, x, mode="graph")
    step(x)
    scale.value = 0.5
    with pytest.warns(RuntimeWarning, match="Lockstep found this"):
        found = step(x)
    assert torch.equal(found, train(x))
    assert "gives 0.5" in step.last_miss


def test_a_train_step_that_is_followed_has_nothing_to_find() -> None:
    torch.manual_seed(1)
    net, scale = Net().eval(), ctypes.c_double(1.0)

    def train(x: Any) -> Any:
        loss = (net(x) * scale.value).square().mean()
        loss.backward()
        return loss

    x = torch.randn(8, 16)
    step = reprise.train_step(train, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for value in (1.0, 1.0, 0.5, 0.25):
            scale.value = value
            found = step(x)
            net.zero_grad()
            assert torch.equal(found, train(x))
            net.zero_grad()
    report = step.report()
    assert isinstance(report, reprise.StepReport) and report.left == 1


def test_nothing_is_said_of_programs_that_do_not_change() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        world = World(on_miss="recapture", lockstep="always")
        for _ in range(3):
            world.call()
    assert world.captured.differences == []
