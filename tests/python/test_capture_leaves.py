"""Leaves that a captured step makes, and flags of tensors that the step or its caller sets."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from small_steps import assert_same, gradients  # noqa: E402
from torch import nn  # noqa: E402


def net() -> Any:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


def step_with(model: Any, leaf: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a step that adds a penalty of the input's gradient to what it returns."""

    def step(x: Any) -> Any:
        leaf_of_x = leaf(x)
        loss = model(leaf_of_x).square().mean()
        loss.backward()
        assert leaf_of_x.grad is not None
        return loss.detach() + leaf_of_x.grad.square().sum()

    return step


def halved(x: Any) -> Any:
    x.register_hook(lambda gradient: gradient * 0.5)
    return x


def doubled_at_the_end(x: Any) -> Any:
    def double(leaf: Any) -> None:
        leaf.grad.mul_(2)

    x.register_post_accumulate_grad_hook(double)
    return x


LEAVES: dict[str, Callable[[Any], Any]] = {
    "a view of the input": lambda x: x[:].requires_grad_(),
    "a detached input": lambda x: x.detach().requires_grad_(),
    "the data of the input": lambda x: x.data.requires_grad_(),
    "a parameter made of the input": lambda x: nn.Parameter(x),
    "a new tensor": lambda x: (x * 2).requires_grad_(),
    "a detached new tensor": lambda x: (x * 2).detach().requires_grad_(),
    "a view with a hook": lambda x: halved(x[:].requires_grad_()),
    "a new tensor with a hook": lambda x: halved((x * 2).requires_grad_()),
    "a view with a hook behind": lambda x: doubled_at_the_end(x[:].requires_grad_()),
}


@pytest.mark.parametrize("kind", LEAVES)
def test_leaves_made_in_the_step(kind: str) -> None:
    plain, model = net(), net()
    expected, step = step_with(plain, LEAVES[kind]), step_with(model, LEAVES[kind])
    captured = reprise.capture(step, torch.randn(4, 8))
    for _ in range(6):
        x = torch.randn(4, 8)
        y = x.clone()
        plain.zero_grad()
        model.zero_grad()
        assert torch.equal(expected(x), captured(y))
        assert_same(gradients(plain), gradients(model))
        assert y.grad is None and not y.requires_grad
        assert torch.equal(x, y)


def test_gradients_are_added_up_beside_a_leaf_made_in_the_step() -> None:
    plain, model = net(), net()
    captured = reprise.capture(step_with(model, LEAVES["a view of the input"]), torch.randn(4, 8))
    for _ in range(3):
        x = torch.randn(4, 8)
        step_with(plain, LEAVES["a view of the input"])(x)
        captured(x)
        assert_same(gradients(plain), gradients(model))


def test_a_leaf_made_of_a_parameter() -> None:
    plain, model = net(), net()

    def step_of(model: Any) -> Callable[[Any], Any]:
        def step(x: Any) -> Any:
            weight = model[0].weight.detach().requires_grad_()
            loss = (x @ weight.t()).square().mean() + model(x).mean()
            loss.backward()
            return loss.detach() + weight.grad.sum()

        return step

    captured = reprise.capture(step_of(model), torch.randn(4, 8))
    for i in range(6):
        if i == 3:  # Other memory for the parameter: the step reads it there.
            for net_ in (plain, model):
                net_[0].weight.data = net_[0].weight.data * 2
        x = torch.randn(4, 8)
        plain.zero_grad()
        model.zero_grad()
        assert torch.equal(step_of(plain)(x), captured(x))
        assert_same(gradients(plain), gradients(model))


def test_an_input_that_the_step_makes_a_leaf() -> None:
    plain, model = net(), net()
    leaf = LEAVES_OF_INPUTS["at once"]
    x = torch.randn(4, 8)
    captured = reprise.capture(step_with(model, leaf), x)
    assert not x.requires_grad and x.grad is None
    y = x.clone()
    for i in range(6):
        if i % 2 == 0:  # Every second call has the input of the call before.
            x, y = torch.randn(4, 8), torch.randn(4, 8)
            with torch.no_grad():
                y.copy_(x)
        x.grad = y.grad = None
        plain.zero_grad()
        model.zero_grad()
        assert torch.equal(step_with(plain, leaf)(x), captured(y))
        assert_same(gradients(plain), gradients(model))
        assert x.requires_grad and y.requires_grad
        assert torch.equal(x.grad, y.grad)


def read_before(x: Any) -> Any:
    x.mean()
    return x.requires_grad_()


LEAVES_OF_INPUTS: dict[str, Callable[[Any], Any]] = {
    "at once": lambda x: x.requires_grad_(),
    "after it was read": read_before,
}


def test_an_input_that_is_read_before_it_is_a_leaf_is_another_input_afterwards() -> None:
    model = net()
    captured = reprise.capture(
        step_with(model, LEAVES_OF_INPUTS["after it was read"]), torch.randn(4, 8)
    )
    x = torch.randn(4, 8)
    captured(x)
    with pytest.raises(reprise.InputError, match="wants a gradient instead of"):
        captured(x)


def frozen_while_it_runs(model: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        model[2].requires_grad_(False)
        loss = model(x).square().mean()
        loss.backward()
        model[2].requires_grad_(True)
        return loss

    return step


def test_parameters_frozen_inside_the_step() -> None:
    plain, model = net(), net()
    captured = reprise.capture(frozen_while_it_runs(model), torch.randn(4, 8))
    for _ in range(4):
        x = torch.randn(4, 8)
        plain.zero_grad()
        model.zero_grad()
        assert torch.equal(frozen_while_it_runs(plain)(x), captured(x))
        assert_same(gradients(plain[0]), gradients(model[0]))
        assert model[2].weight.grad is None and model[2].weight.requires_grad


def plain_step(model: Any) -> Callable[[Any], Any]:
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step


@pytest.mark.parametrize("at_capture", [True, False])
def test_parameters_frozen_or_unfrozen_between_calls(at_capture: bool) -> None:
    model = net()
    model[2].requires_grad_(at_capture)
    plain = copy.deepcopy(model)
    x = torch.randn(4, 8)
    refuses = reprise.capture(plain_step(model), x)
    follows = reprise.capture(plain_step(model), x, on_miss="recapture")
    for wanted in (at_capture, not at_capture, at_capture, not at_capture):
        for net_ in (plain, model):
            net_.zero_grad()
            net_[2].requires_grad_(wanted)
        if wanted != at_capture:
            said = (
                "requires_grad was False and is True"
                if wanted
                else "requires_grad was True and is False"
            )
            with pytest.raises(reprise.InputError, match=said):
                refuses(x)
            assert all(p.grad is None for p in model.parameters())
        assert torch.equal(plain_step(plain)(x), follows(x))
        assert_same(gradients(plain[0]), gradients(model[0]))
        assert (model[2].weight.grad is not None) == wanted
        assert not wanted or torch.equal(plain[2].weight.grad, model[2].weight.grad)
