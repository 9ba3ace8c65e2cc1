"""Captured steps whose optimizer's state lies on a disk between the calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import perceptron, vectors  # noqa: E402
from test_offload import FAST, step_of  # noqa: E402


def state_of(optimizer: Any) -> list[Any]:
    """Returns copies of all tensors of an optimizer's state, in the order of the parameters."""
    states = optimizer.state_dict()["state"]
    return [value.clone() for number in sorted(states) for value in states[number].values()]


def adamw(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def momentum(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def wide() -> Any:
    """Returns a network whose weights are larger than a page."""
    torch.manual_seed(5)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.Tanh())]
    return torch.nn.Sequential(*layers)


def batch() -> tuple[Any, Any]:
    torch.manual_seed(7)
    return torch.randn(32, 64), torch.randint(0, 64, (32,))


@pytest.mark.parametrize("make", [adamw, momentum])
def test_steps_are_those_of_plain_training(make: Any, tmp_path: Path) -> None:
    plain, model = wide(), wide()
    x, y = batch()
    optimizer, far = make(plain), make(model)
    step = reprise.capture(step_of(model), x, y, optimizer=far, alternatives=[])
    options: dict[str, Any] = {"offload": f"disk:{tmp_path}", "machine": FAST, "time_limit": 0.3}
    step.plan(offload_optimizer=True, **options)
    for call in range(4):
        step_of(plain)(x, y)
        optimizer.step()
        optimizer.zero_grad()
        step(x, y)
        report = step.report()
        # An update that makes its state needs no room for the two numbers that it is scaled with.
        spared = report.predicted_peak_bytes - report.measured_peak_bytes
        assert 0 <= spared <= (128 if call == 0 else 0)
        assert report.moved_out_bytes > 0
        assert (report.moved_in_bytes > 0) == (call > 0)
        for one, other in zip(plain.parameters(), model.parameters(), strict=True):
            assert torch.equal(one, other)
        if call % 2 == 1:
            for one, other in zip(state_of(optimizer), state_of(far), strict=True):
                assert torch.equal(one, other)
    assert not list(tmp_path.iterdir())


def test_state_is_read_only_when_it_is_there(tmp_path: Path) -> None:
    model = wide()
    x, y = batch()
    optimizer = adamw(model)
    step = reprise.capture(step_of(model), x, y, optimizer=optimizer, alternatives=[])
    step.plan(offload=f"disk:{tmp_path}", machine=FAST, time_limit=0.3, offload_optimizer=True)
    step(x, y)
    weight = next(model.parameters())
    with pytest.raises(RuntimeError, match="fetch_optimizer_state"):
        optimizer.state[weight]["exp_avg"].sum()
    step.fetch_optimizer_state()
    before = optimizer.state[weight]["exp_avg"].clone()
    step(x, y)
    path = tmp_path.parent / "state.safetensors"
    reprise.save_state(path, model=model, optimizer=optimizer)
    assert not torch.equal(before, optimizer.state[weight]["exp_avg"])
    saved = state_of(optimizer)
    step(x, y)
    reprise.load_state(path, model=model, optimizer=optimizer)
    for one, other in zip(saved, state_of(optimizer), strict=True):
        assert torch.equal(one, other)
    step(x, y)
    after = state_of(optimizer)
    del step
    for one, other in zip(after, state_of(optimizer), strict=True):
        assert torch.equal(one, other)


def test_mistakes_are_named(tmp_path: Path) -> None:
    model = perceptron()
    step = reprise.capture(step_of(model), *vectors(), optimizer=momentum(model))
    with pytest.raises(reprise.InputError, match="needs a memory"):
        step.plan(offload_optimizer=True)
    without = reprise.capture(step_of(perceptron()), *vectors())
    with pytest.raises(reprise.InputError, match="the step has none"):
        without.plan(offload_optimizer=True, offload=f"disk:{tmp_path}", machine=FAST)
