"""Clipping by the norm of all gradients, with the optimizer inside the captured step."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import ResNet, assert_same_bits, state_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

MAX_NORM = 0.05


def held(net: nn.Module) -> Callable[[Any, Any], Any]:
    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss, nn.utils.clip_grad_norm_(net.parameters(), MAX_NORM)

    return step


def in_two_passes(net: nn.Module) -> Callable[[Any, Any], Any]:
    def step(x: Any, y: Any) -> Any:
        return reprise.clipped_backward(lambda: F.cross_entropy(net(x), y), net, MAX_NORM)

    return step


def images(count: int) -> list[tuple[Any, Any]]:
    return [(torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))) for _ in range(count)]


@pytest.mark.parametrize("kind", [held, in_two_passes])
@pytest.mark.parametrize("captured", [False, True])
def test_training_is_that_of_the_plain_loop(kind: Any, captured: bool) -> None:
    torch.manual_seed(1)
    plain = ResNet()
    model = copy.deepcopy(plain)
    data = images(3)
    optimizers = [
        torch.optim.SGD(one.parameters(), lr=0.05, momentum=0.9) for one in (plain, model)
    ]
    expected = []
    for x, y in data:
        expected.append(held(plain)(x, y))
        optimizers[0].step()
        optimizers[0].zero_grad()
    step = kind(model)
    if captured:
        step = reprise.capture(step, *data[0], optimizer=optimizers[1])
        step.plan(budget="100%")
    for (x, y), wanted in zip(data, expected, strict=True):
        assert all(map(torch.equal, step(x, y), wanted))
        if not captured:
            optimizers[1].step()
            optimizers[1].zero_grad()
    assert wanted[1] > MAX_NORM
    assert_same_bits(state_of(model), state_of(plain))
    for a, b in zip(plain.parameters(), model.parameters(), strict=True):
        momentum = "momentum_buffer"
        assert torch.equal(optimizers[0].state[a][momentum], optimizers[1].state[b][momentum])


def smallest_budget(kind: Any) -> int:
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(16)])
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = reprise.capture(kind(net), x, y, optimizer=optimizer)
    with pytest.raises(reprise.BudgetError) as refused:
        step.plan(budget=1, time_limit=2, threads=1)
    return int(refused.value.requested)


def test_two_passes_hold_no_gradient_while_they_make_the_next() -> None:
    smallest = {}
    for kind in (held, in_two_passes):
        smallest[kind] = smallest_budget(kind)
        gc.collect()  # The memory of one step would count in the budget of the next.
    gradients = 16 * (64 * 64 + 64) * 4
    assert smallest[in_two_passes] < smallest[held] - gradients // 2


def test_what_two_passes_cannot_do_is_refused() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = torch.randn(16, 64), torch.randint(0, 10, (16,))
    dropout = nn.Sequential(net, nn.Dropout(0.5))
    for call in (
        in_two_passes(dropout),
        lambda x, y: reprise.capture(in_two_passes(dropout), x, y),
    ):
        with pytest.raises(reprise.InputError, match="draws random numbers"):
            call(x, y)
    other = nn.Linear(2, 2)
    with pytest.raises(reprise.InputError, match="no parameter of the module"):
        reprise.clipped_backward(lambda: F.cross_entropy(net(x), y), other, MAX_NORM)


def deep(seed: int = 0) -> tuple[nn.Module, Any, Any]:
    torch.manual_seed(seed)
    net = nn.Sequential(*[nn.Linear(64, 64) for _ in range(16)])
    return net, torch.randn(16, 64), torch.randint(0, 10, (16,))


def clipped(net: nn.Module, x: Any, y: Any, **options: Any) -> Any:
    return reprise.capture_clipped(
        lambda x, y: F.cross_entropy(net(x), y),
        *(x, y),
        module=net,
        max_norm=MAX_NORM,
        optimizer=torch.optim.SGD(net.parameters(), lr=0.1),
        time_limit=2,
        threads=1,
        **options,
    )


@pytest.mark.parametrize("form", ["gradients held", "two passes"])
def test_the_form_is_the_one_that_fits(form: str) -> None:
    plain, x, y = deep()
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    expected = held(plain)(x, y)
    optimizer.step()
    optimizer.zero_grad()

    # Nothing with gradients held fits just below its smallest budget.
    budget = 1 << 40 if form == "gradients held" else smallest_budget(held) - 50_000
    gc.collect()
    net, _, _ = deep()
    step = clipped(net, x, y, budget=budget, name="clipped")
    assert step.graph.name == f"clipped, {form}"
    assert all(map(torch.equal, step(x, y), expected))
    assert_same_bits(state_of(net), state_of(plain))


def test_the_error_is_that_of_the_form_which_needs_less() -> None:
    smallest = smallest_budget(held)
    gc.collect()
    net, x, y = deep()
    with pytest.raises(reprise.BudgetError) as refused:
        clipped(net, x, y, budget=1)
    assert refused.value.requested < smallest
    # A loss that draws random numbers has one form only.
    dropout = nn.Sequential(net, nn.Dropout(0.5))
    with pytest.raises(reprise.BudgetError, match="smallest"):
        clipped(dropout, x, y, budget=1)
