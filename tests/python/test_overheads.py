"""What a step costs beside training is visible: a line for each capture and search."""

from __future__ import annotations

import logging
import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from reprise.integrations.steps import by_kind  # noqa: E402
from torch import nn  # noqa: E402


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)))


class Loop:
    def __init__(self) -> None:
        self.net = network()

    def step(self, x: Any) -> Any:
        self.net.zero_grad()
        loss = self.net(x).square().mean()
        loss.backward()
        return loss.detach()


def batch(rows: int) -> Any:
    return torch.randn(rows, 64)


def test_each_capture_and_search_is_a_line(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    with caplog.at_level(logging.INFO, "reprise"):
        step = reprise.capture(loop.step, batch(64), on_miss="recapture", name="train")
        step.plan(budget="100%")
        step(batch(64))
        step(batch(32))
    lines = [record.getMessage() for record in caplog.records if record.name == "reprise"]
    assert [line.split(" in ")[0] for line in lines] == [
        "the step 'train': capture",
        "the step 'train': plan",
        "the step 'train': capture",
        "the step 'train': plan",
    ]
    assert "because it is the first one: " in lines[0]
    assert "operations" in lines[0]
    assert "of plain training's peak" in lines[1]
    assert "because input 0 is Float[32, 64]" in lines[2]
    overheads = step.report().overheads
    assert [f"the step 'train': {one}" for one in overheads] == lines
    assert all(one.time_ns > 0 for one in overheads)


def test_the_second_one_for_the_same_reason_is_a_warning_and_no_further_one() -> None:
    loop = Loop()
    step = reprise.capture(loop.step, batch(64), on_miss="recapture")
    step.plan()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(batch(32))
    with pytest.warns(RuntimeWarning, match="the second time for this reason"):
        step(batch(16))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(batch(8))
    assert len([one for one in step.report().overheads if one.work == "capture"]) == 4


def test_a_search_behind_memory_that_grew_says_so() -> None:
    loop, x = Loop(), batch(256)
    step = reprise.capture(loop.step, x)
    step.plan(budget="100%")
    step(x)
    held = torch.zeros(8192)
    step(x)
    assert "memory outside of the step grew by 32" in step.report().overheads[-1].why
    loop.net.zero_grad()
    model = reprise.remat(loop.net, x, budget="100%", loss=lambda y: y.square().mean())
    loop.net.zero_grad()
    more = torch.zeros(8192)
    model(x).square().mean().backward()
    assert [one.work for one in model.report().overheads] == ["measure", "plan", "plan"]
    assert "memory outside of the step grew by 32" in model.report().overheads[-1].why
    del held, more


def test_a_search_that_fails_is_there_with_its_reason() -> None:
    loop = Loop()
    step = reprise.capture(loop.step, batch(64))
    with pytest.raises(reprise.BudgetError):
        step.plan(budget=1)
    assert "no plan within 1 B" in step.report().overheads[-1].found


def test_choices_of_a_mode_are_there() -> None:
    loop, x = Loop(), batch(64)
    made = reprise.train_step(loop.step, x, budget="100%", mode="graph")
    works = [one.work for one in made.report().overheads]
    assert works == ["choose a mode", "capture", "plan"]
    step = by_kind(loop.step, budget="100%", mode="graph")
    step(x)
    loop.net.zero_grad()
    step(batch(32))
    first, second = (o for o in step.report().overheads if o.work == "choose a mode")
    assert first.why == "it is the first step"
    assert second.why == "these inputs are of another kind"
    assert first.found.startswith("graph mode, the step was recorded")


def test_a_followed_step_is_chosen_once_and_planned_between_two_calls() -> None:
    loop, x = Loop(), batch(64)
    kinds = by_kind(loop.step, budget="100%")
    for step in (reprise.train_step(loop.step, x, budget="100%"), kinds):
        works = []
        for _ in range(3):
            step(x)
            loop.net.zero_grad()
            works.append([one.work for one in step.report().overheads])
        assert works[0] == ["choose a mode"]
        assert works[1] == works[2] == ["choose a mode", "capture", "plan"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (32, 16, 8):
            kinds(batch(rows))
            loop.net.zero_grad()
    assert [one.work for one in kinds.report().overheads].count("choose a mode") == 1


def test_searches_of_online_mode_are_there() -> None:
    reprise.install_cpu_allocator()
    loop, x = Loop(), batch(2048)
    reprise.reset_peak()
    loop.step(x)
    budget = int(reprise.peak_bytes() * 0.9)
    online = reprise.online(budget=budget, time_limit=0.1)
    for _ in range(3):
        with online:
            loop.step(x)
    (search,) = online.report().overheads
    assert (search.work, search.why) == ("plan", "the same operations were seen before")
