"""Captured steps whose parameters lie on a disk between the calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from test_offload import FAST, step_of  # noqa: E402
from test_offload_optimizer import adamw, batch, state_of, wide  # noqa: E402
from torch import nn  # noqa: E402


class Adapted(nn.Module):
    """A frozen layer with a small adapter beside it."""

    def __init__(self, base: Any) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(64, 8, bias=False)
        self.up = nn.Linear(8, 64, bias=False)

    def forward(self, x: Any) -> Any:
        return self.base(x) + self.up(self.down(x))


def tuned() -> Any:
    """Returns a frozen network with adapters."""
    model = wide()
    for k in range(0, len(model), 2):
        model[k] = Adapted(model[k])
    return model


def optimizer_of(model: Any) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def equal(one: Any, other: Any) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, Any]]:
    yield {
        "offload": f"disk:{tmp_path}",
        "machine": FAST,
        "time_limit": 0.3,
        "offload_parameters": True,
    }
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("inside", [False, True])
def test_fine_tuning_has_the_bits_of_plain_training(inside: bool, options: Any) -> None:
    plain, model = tuned(), tuned()
    x, y = batch()
    plain_optimizer, optimizer = optimizer_of(plain), optimizer_of(model)
    inner = {"optimizer": optimizer} if inside else {}
    step = reprise.capture(step_of(model), x, y, alternatives=[], **inner)
    step.plan(**options)
    for _ in range(3):
        step_of(plain)(x, y)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        step(x, y)
        if not inside:
            optimizer.step()
            optimizer.zero_grad()
        report = step.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.moved_in_bytes >= 4 * 64 * 64 * 4
        assert report.moved_out_bytes == 0
    assert equal(plain, model)


def test_all_parameters_and_their_state_may_be_away(options: Any) -> None:
    plain, model = wide(), wide()
    x, y = batch()
    plain_optimizer, optimizer = adamw(plain), adamw(model)
    step = reprise.capture(step_of(model), x, y, optimizer=optimizer, alternatives=[])
    step.plan(offload_optimizer=True, **options)
    for _ in range(3):
        step_of(plain)(x, y)
        plain_optimizer.step()
        plain_optimizer.zero_grad()
        step(x, y)
        report = step.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
    assert equal(plain, model)
    for one, other in zip(state_of(plain_optimizer), state_of(optimizer), strict=True):
        assert torch.equal(one, other)
    del step
    assert equal(plain, model)


def test_parameters_are_read_only_when_they_are_there(options: Any, tmp_path: Path) -> None:
    model, other = tuned(), tuned()
    x, y = batch()
    step = reprise.capture(step_of(model), x, y, alternatives=[])
    step.plan(**options)
    step(x, y)
    with pytest.raises(RuntimeError, match="fetch_parameters"):
        model(x)
    step.fetch_parameters()
    assert torch.equal(model(x), other(x))
    step(x, y)
    assert equal(model[0], other[0])  # A part of the model brings them back, too.
    step(x, y)
    path = tmp_path.parent / "parameters.safetensors"
    reprise.save_state(path, model=model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    step(x, y)
    reprise.load_state(path, model=model)
    assert equal(model, other)
    step(x, y)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.5)
    model.load_state_dict(other.state_dict())
    model.zero_grad()
    step(x, y)
    step_of(other)(x, y)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert (one.grad is None) == (two.grad is None)
        assert one.grad is None or torch.equal(one.grad, two.grad)


def test_a_step_is_captured_again_while_parameters_are_away(options: Any) -> None:
    model, other = tuned(), tuned()
    x, y = batch()
    step = reprise.capture(step_of(model), x, y, alternatives=[], on_miss="recapture")
    step.plan(**options)
    for rows in (32, 16, 32):
        model.zero_grad()
        other.zero_grad()
        loss = step(x[:rows], y[:rows])
        assert torch.equal(loss, step_of(other)(x[:rows], y[:rows]).detach())
        report = step.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        assert report.moved_in_bytes > 0
    assert equal(model, other)


def test_mistakes_are_named(options: Any) -> None:
    model = wide()
    step = reprise.capture(step_of(model), *batch())
    with pytest.raises(reprise.InputError, match="freeze what is not trained"):
        step.plan(**options)
    with pytest.raises(reprise.InputError, match="needs a memory"):
        step.plan(offload_parameters=True)
