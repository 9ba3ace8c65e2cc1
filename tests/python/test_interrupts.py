"""An interrupt ends what Reprise does, and everything is as before."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from torch import nn  # noqa: E402


class Step:
    """A step that is interrupted in one of its calls."""

    def __init__(self, at: int = 0) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(*(nn.Linear(32, 32) for _ in range(6)))
        self.calls, self.at = 0, at

    def run(self, x: Any) -> Any:
        self.calls += 1
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGINT)
        loss = self.net(x).square().mean()
        loss.backward()
        return loss.detach()


X = torch.randn(64, 32, generator=torch.Generator().manual_seed(1))


def remat(step: Step) -> Any:
    def loss(y: Any) -> Any:
        step.calls += 1
        if step.calls == step.at:
            os.kill(os.getpid(), signal.SIGINT)
        return y.square().mean()

    return reprise.remat(step.net, X, budget="100%", loss=loss)


def followed(step: Step) -> None:
    made = reprise.train_step(step.run, X, budget="100%")
    for _ in range(2):
        made(X)
        step.net.zero_grad()


WAYS: dict[str, Callable[[Step], Any]] = {
    "capture": lambda step: reprise.capture(step.run, X, unguarded=["run.calls", "run.at"]),
    "train_step": followed,
    "remat": remat,
}


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_an_interrupt_in_the_users_function_is_no_refusal(way: str, at: int) -> None:
    step = Step(at)
    before = [p.detach().clone() for p in step.net.parameters()]
    with pytest.raises(KeyboardInterrupt):
        WAYS[way](step)
    for parameter, value in zip(step.net.parameters(), before, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is None
    step.at = 0
    WAYS[way](step)


def test_an_interrupt_while_lockstep_compares_is_no_miss() -> None:
    step = Step()
    captured = reprise.capture(step.run, X, unguarded=["run.calls", "run.at"])
    captured.plan()
    step.at = step.calls + 1
    with pytest.raises(KeyboardInterrupt):
        captured(X)
    captured(X)


def test_a_search_ends_soon_behind_an_interrupt() -> None:
    """It looks for signals while it searches, and not only when it is over."""
    step = Step()
    captured = reprise.capture(step.run, X, unguarded=["run.calls", "run.at"])
    seen = 0

    def interrupt(_: reprise.Progress) -> None:
        nonlocal seen
        seen += 1
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        captured.plan(budget="100%", time_limit=60, observer=interrupt)
    assert seen <= 2
    captured.plan(budget="100%")
    captured(X)
