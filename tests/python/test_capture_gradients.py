"""The gradients of a captured step: its own, and those that are there before."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from small_steps import assert_same, data, gradients, net, step_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_inside_the_step(to_none: bool) -> None:
    model = net()

    def step(x: Any, y: Any) -> Any:
        model.zero_grad(set_to_none=to_none)
        loss: Any = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    x, y = data()
    captured = reprise.capture(step, x, y)
    for _ in range(3):
        captured(x, y)
    peak = captured.report().measured_peak_bytes
    assert peak == captured.report().predicted_peak_bytes
    replayed = gradients(model)
    step(x, y)
    assert_same(replayed, gradients(model))


def test_gradients_that_are_there_are_added_to() -> None:
    model = net()
    batches = [data() for _ in range(3)]
    captured = reprise.capture(step_of(model), *batches[0])
    for batch in batches:
        captured(*batch)
    replayed = gradients(model)
    model.zero_grad()
    for batch in batches:
        step_of(model)(*batch)
    assert_same(replayed, gradients(model))


def clipped(model: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        loss: Any = F.cross_entropy(model(x), y)
        loss.backward()
        return loss, nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    return step


def twice(model: Any) -> Callable[..., Any]:
    def step(x: Any, y: Any) -> Any:
        step_of(model)(x, y)
        return step_of(model)(x, y)

    return step


@pytest.mark.parametrize("kind", [clipped, twice])
def test_more_than_adding_to_a_gradient_wants_none_there(kind: Any) -> None:
    model = net()
    x, y = data()
    captured = reprise.capture(kind(model), x, y)
    captured(x, y)
    replayed = gradients(model)
    with pytest.raises(reprise.errors.StepMiss, match="has a gradient already") as missed:
        captured(x, y)
    assert missed.value.of_gradients
    assert_same(replayed, gradients(model))
    model.zero_grad()
    kind(model)(x, y)
    assert_same(replayed, gradients(model))


def test_a_leaf_that_the_step_makes_goes_with_it() -> None:
    model = nn.Linear(64, 64)

    def step(x: Any, y: Any) -> Any:
        noise: Any = torch.zeros_like(x, requires_grad=True)
        first: Any = F.mse_loss(model(x + noise), y)
        first.backward()
        model.zero_grad()
        loss: Any = F.mse_loss(model(x + 0.1 * noise.grad.sign()), y)
        loss.backward()
        return loss

    x, y = torch.randn(1024, 64), torch.randn(1024, 64)
    plain = copy.deepcopy(model.state_dict())
    captured = reprise.capture(step, x, y)
    captured.plan(budget="100%")
    loss = None
    for _ in range(3):
        del loss
        loss = captured(x, y)
    assert captured.report().plans == 1
    replayed = gradients(model)
    assert_same(list(plain.values()), list(model.state_dict().values()))
    assert torch.equal(loss, step(x, y))
    assert_same(replayed, gradients(model))


def test_a_step_that_returns_a_gradient() -> None:
    model = net()

    def step(x: Any, y: Any) -> Any:
        step_of(model)(x, y)
        return model[0].weight.grad

    x, y = data()
    captured = reprise.capture(step, x, y)
    first = captured(x, y).clone()
    with pytest.raises(reprise.InputError, match="has a gradient already"):
        captured(x, y)
    model.zero_grad()
    assert torch.equal(first, step(x, y))


def test_gradients_in_a_tensor_that_the_step_reads_are_refused() -> None:
    model = net()
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    begin = 0
    for p in model.parameters():
        p.grad = flat[begin : begin + p.numel()].view_as(p)
        begin += p.numel()

    def step(x: Any, y: Any) -> Any:
        flat.zero_()
        step_of(model)(x, y)
        return flat.norm()

    with pytest.raises(reprise.InputError, match=r"in which the \.grad of a parameter lies"):
        reprise.capture(step, *data())


def test_gradients_that_go_to_no_parameter() -> None:
    model = net()

    def step(x: Any, y: Any) -> Any:
        loss: Any = F.cross_entropy(model(x), y)
        return loss, *torch.autograd.grad(loss, list(model.parameters()))

    x, y = data()
    captured = reprise.capture(step, x, y)
    assert_same(list(captured(x, y)), [t.detach() for t in step(x, y)])


class Heads(nn.Module):
    """All steps use the trunk, and each step trains one of the two ends."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.body = nn.Linear(32, 64)
        self.ends = nn.ModuleList([nn.Linear(64, 10), nn.Linear(64, 10)])

    def forward(self, x: Any, end: int) -> Any:
        return self.ends[end](self.body(x).relu())


def train_end(model: Any, end: int, x: Any, y: Any) -> Any:
    loss: Any = F.cross_entropy(model(x, end), y)
    loss.backward()
    return loss


def drop_none(model: Any, optimizer: Any) -> None:
    del model, optimizer


def drop_of_module(model: Any, optimizer: Any) -> None:
    del optimizer
    model.zero_grad()


def drop_of_optimizer(model: Any, optimizer: Any) -> None:
    del model
    optimizer.zero_grad()


def zero_of_optimizer(model: Any, optimizer: Any) -> None:
    del model
    optimizer.zero_grad(set_to_none=False)


def clip_there(model: Any, optimizer: Any) -> None:
    del optimizer
    there = [p for p in model.parameters() if p.grad is not None]
    if there:
        nn.utils.clip_grad_norm_(there, 0.1)


def steps_of_heads(drop: Callable[[Any, Any], None], shown: bool) -> tuple[Any, Callable[..., Any]]:
    model = Heads()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    body, end = model.body, model.ends[0]

    def of_model(x: Any, y: Any) -> Any:
        drop(model, optimizer)
        loss: Any = F.cross_entropy(model(x, 0), y)
        loss.backward()
        return loss

    def of_parts(x: Any, y: Any) -> Any:  # The function shows the optimizer and not the model.
        drop(None, optimizer)
        loss: Any = F.cross_entropy(end(body(x).relu()), y)
        loss.backward()
        return loss

    return model, of_model if shown else of_parts


@pytest.mark.parametrize(
    ("drop", "shown"),
    [
        (drop_none, True),
        (drop_of_module, True),
        (drop_of_optimizer, True),
        (drop_of_optimizer, False),
        (zero_of_optimizer, True),
        (zero_of_optimizer, False),
    ],
)
def test_gradients_of_what_the_step_does_not_reach(drop: Any, shown: bool) -> None:
    x, y = data()
    results = []
    for replayed in (False, True):
        model, step = steps_of_heads(drop, shown)
        run = reprise.capture(step, x, y) if replayed else step
        for _ in range(2):
            train_end(model, 1, x, y)
            run(x, y)
        results.append([p.grad for p in model.parameters()])
    for plain, own in zip(*results, strict=True):
        assert (plain is None) == (own is None)
        assert plain is None or torch.equal(plain, own)


def test_capturing_leaves_gradients_that_the_step_drops() -> None:
    for drop in (drop_of_module, zero_of_optimizer):
        x, y = data()
        model, step = steps_of_heads(drop, True)
        for end in (0, 1):
            train_end(model, end, x, y)
        before = [p.grad for p in model.parameters()]
        copies = gradients(model)
        reprise.capture(step, x, y)
        assert all(p.grad is b for p, b in zip(model.parameters(), before, strict=True))
        assert_same(copies, gradients(model))


def test_clipping_what_the_step_does_not_reach_wants_no_gradient_there() -> None:
    x, y = data()
    model, step = steps_of_heads(clip_there, True)
    captured = reprise.capture(step, x, y)
    captured(x, y)
    model.zero_grad()
    train_end(model, 1, x, y)
    model.body.zero_grad()
    with pytest.raises(reprise.InputError, match="has a gradient already"):
        captured(x, y)
