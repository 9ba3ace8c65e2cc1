"""The inputs of a captured step: parts of one tensor, shared memory, histories."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from small_steps import assert_same, data, gradients, net, step_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def test_batches_may_be_parts_of_one_tensor() -> None:
    model = net()
    xs, ys = data(256)
    captured = reprise.capture(step_of(model), xs[:64], ys[:64])
    own = [xs[64:128].clone(), ys[64:128].clone()]
    for batch in [(xs[k : k + 64], ys[k : k + 64]) for k in range(0, 256, 64)]:
        model.zero_grad()
        loss = captured(*batch)
        report = captured.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        replayed = gradients(model)
        model.zero_grad()
        assert torch.equal(loss, step_of(model)(*batch))
        assert_same(replayed, gradients(model))
    model.zero_grad()
    assert torch.equal(captured(*own), step_of(model)(*own))
    with pytest.raises(reprise.InputError, match="at offset 1"):
        captured(xs.view(-1)[1 : 1 + 64 * 32].view(64, 32), ys[:64])


def test_a_part_of_a_larger_tensor_than_the_sample_counts_as_a_whole() -> None:
    model = net()
    captured = reprise.capture(step_of(model), *data())
    xs, ys = data(256)
    for _ in range(3):
        model.zero_grad()
        captured(xs[:64], ys[:64])
        report = captured.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes


def test_inputs_that_shared_memory_in_the_sample() -> None:
    model = nn.Linear(32, 32)

    def step(x: Any, t: Any) -> Any:
        loss: Any = F.mse_loss(model(x), t)
        loss.backward()
        return loss

    x, other = torch.randn(64, 32), torch.randn(64, 32)
    captured = reprise.capture(step, x, x)
    assert torch.equal(captured(other, other), step(other, other))
    with pytest.raises(reprise.InputError, match="shared memory in the sample"):
        captured(x, other)


def test_an_input_with_a_history_is_refused() -> None:
    backbone, model = nn.Linear(32, 32), net()
    x, y = data()
    with pytest.raises(reprise.InputError, match="has a history"):
        reprise.capture(step_of(model), backbone(x), y)
    captured = reprise.capture(step_of(model), x.clone().requires_grad_(), y)
    with pytest.raises(reprise.InputError, match="has a history"):
        captured(backbone(x), y)


def test_what_lies_beside_an_input_in_its_tensor_is_refused() -> None:
    model, rows = nn.Linear(32, 32), torch.randn(256, 32)

    def step(x: Any) -> Any:
        loss: Any = (model(x) - rows.mean(0)).square().mean()
        loss.backward()
        return loss

    with pytest.raises(reprise.InputError, match="input 0 is a part of"):
        reprise.capture(step, rows[:64])
    captured = reprise.capture(step, rows[:64].clone())
    assert torch.equal(captured(rows[64:128].clone()), step(rows[64:128]))
