"""Steps in parts: the bits of accumulating by hand, within the budget."""

from __future__ import annotations

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import assert_same_bits, perceptron, state_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def batch(rows: int = 250) -> tuple[Any, Any]:
    return torch.randn(rows, 64), torch.randint(0, 10, (rows,))


def part_of(net: nn.Module) -> Any:
    def part(x: Any, y: Any, share: float = 1.0) -> Any:
        loss = F.cross_entropy(net(x), y) * share
        loss.backward()
        return {"loss": loss}

    return part


def test_the_bits_are_those_of_accumulating_by_hand() -> None:
    torch.manual_seed(5)
    plain = perceptron()
    model = copy.deepcopy(plain)
    batches = [batch() for _ in range(3)]
    step = reprise.micro_batches(part_of(model), *batches[0], budget="90%", parts=[3])
    assert step.parts == 3
    assert [tried.parts for tried in step.tried] == [3]
    assert step.planned.plan is not None
    torch.manual_seed(6)
    for x, y in batches:  # 250 rows are divided into 83, 83 and 84.
        plain.zero_grad()
        losses = [
            part_of(plain)(x[a:b], y[a:b], (b - a) / 250)["loss"].detach()
            for a, b in ((0, 83), (83, 166), (166, 250))
        ]
        expected = losses[0] + losses[1] + losses[2]
    random_state = torch.get_rng_state()
    torch.manual_seed(6)
    for x, y in batches:
        model.zero_grad()
        result = step(x, y)
    assert torch.equal(result["loss"], expected)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same_bits(state_of(model), state_of(plain))
    report = step.report()
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_the_number_of_parts_is_the_planner_s_choice() -> None:
    torch.manual_seed(5)
    model = perceptron()
    whole = reprise.micro_batches(part_of(model), *batch())
    assert whole.parts == 1
    with pytest.raises(reprise.BudgetError, match="closest is 1: infeasible") as refused:
        reprise.micro_batches(part_of(model), *batch(), budget=1000, parts=[1])
    floor = refused.value.requested
    step = reprise.micro_batches(part_of(model), *batch(), budget=floor - 1)
    assert step.parts > 1
    step(*batch())
    assert step.report().measured_peak_bytes < floor


def test_another_batch_is_captured_again_in_as_many_parts() -> None:
    torch.manual_seed(5)
    model = perceptron()
    step = reprise.micro_batches(
        part_of(model), *batch(), budget="100%", parts=[2], on_miss="recapture"
    )
    step(*batch(64))
    # The parts' gradients are added up before they are added to a gradient that is there.
    with pytest.raises(reprise.InputError, match="has a gradient already"):
        step(*batch(64))
    model.zero_grad()
    step(*batch(64))
    assert step.parts == 2
    step.plan(budget="95%")
    model.zero_grad()
    step(*batch(64))
    model.zero_grad()
    with pytest.raises(reprise.InputError, match="no 2 parts"):
        step(*batch(1))
    # A failure leaves nothing behind: the same call is refused again, and the other step goes on.
    with pytest.raises(reprise.InputError, match="no 2 parts"):
        step(*batch(1))
    step(*batch(64))


def test_what_cannot_be_divided_is_refused() -> None:
    model = perceptron()
    with pytest.raises(reprise.InputError, match="none of these numbers"):
        reprise.micro_batches(part_of(model), *batch(3), parts=[4, 5])
    with pytest.raises(reprise.InputError, match="none of these numbers"):
        reprise.micro_batches(part_of(model), *batch(3), parts=[])
    with pytest.raises(reprise.InputError, match="tensors only"):
        reprise.micro_batches(lambda x, y, share: (part_of(model)(x, y, share), 3), *batch())
    with pytest.raises(TypeError, match="share"):
        reprise.micro_batches(lambda x, y: F.cross_entropy(model(x), y).backward(), *batch())


def test_numbers_of_parts_are_whole() -> None:
    x = torch.randn(8, 32)
    for parts in (("2",), (2.5,)):
        with pytest.raises(reprise.InputError, match="whole numbers"):
            reprise.micro_batches(lambda inputs, share: inputs.sum(), x, parts=parts)  # type: ignore[arg-type]


def test_only_the_tail_is_in_parts() -> None:
    torch.manual_seed(7)
    trunk = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU())
    head = nn.Linear(96, 10)
    plain_trunk, plain_head = copy.deepcopy(trunk), copy.deepcopy(head)

    def body(x: Any, y: Any) -> Any:
        return trunk(x), y

    def part(h: Any, y: Any, share: float = 1.0) -> Any:
        loss = F.cross_entropy(head(h), y) * share
        loss.backward()
        return loss

    x, y = batch()
    step = reprise.micro_batches(part, x, y, body=body, parts=[2])
    for _ in range(2):
        for module in (trunk, head, plain_trunk, plain_head):
            module.zero_grad()
        loss = step(x, y)
        whole = plain_trunk(x)  # This is the step as written by hand.
        losses, gradients = [], []
        for rows in (slice(0, 125), slice(125, 250)):
            h = whole[rows].detach().requires_grad_()
            losses.append(F.cross_entropy(plain_head(h), y[rows]) * 0.5)
            losses[-1].backward()
            gradients.append(h.grad)
        whole.backward(torch.cat(gradients))
        assert torch.equal(loss, losses[0].detach() + losses[1].detach())
        assert_same_bits(state_of(trunk), state_of(plain_trunk))
        assert_same_bits(state_of(head), state_of(plain_head))
    report = step.report()
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_a_body_must_return_tensors_to_divide() -> None:
    def part(h: Any, share: float = 1.0) -> Any:
        loss = h.sum() * share
        loss.backward()
        return loss

    weight = torch.ones(4, requires_grad=True)
    with pytest.raises(reprise.InputError, match="dimension 0"):
        reprise.micro_batches(part, torch.randn(4), body=lambda x: (x * weight).sum(), parts=[2])
