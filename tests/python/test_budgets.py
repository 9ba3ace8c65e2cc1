"""A share is one number of bytes in every mode, and what the program takes later is foreseen."""

from __future__ import annotations

import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from reprise._step.foreseen import ForeseenState  # noqa: E402
from reprise.integrations.steps import by_kind  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 128
STATE = 4 * 2 * 4 * (WIDTH * WIDTH + WIDTH)  # of AdamW, without its counters


@pytest.fixture(autouse=True)
def counted() -> None:
    reprise.install_cpu_allocator()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Tanh()) for _ in range(4))
    )


def batch(rows: int) -> Any:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(rows))


def limit(budget: int | None) -> int:
    assert budget is not None
    return budget


class Loop:
    """A model, its step, and the optimizer that the loop calls behind it."""

    def __init__(self, kind: Any = torch.optim.AdamW, **options: Any) -> None:
        self.net = network()
        self.optimizer = kind(self.net.parameters(), **options)

    def step(self, x: Any) -> Any:
        loss = self.net(x).square().mean()
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.SGD, {"momentum": 0.9, "lr": 0.1}),
        (torch.optim.SGD, {"lr": 0.1}),
        (torch.optim.AdamW, {"amsgrad": True}),
        (torch.optim.AdamW, {"foreach": True}),
        (torch.optim.Adam, {"fused": True}),
        (torch.optim.RMSprop, {"centered": True, "momentum": 0.5}),
        (torch.optim.Adamax, {}),
        (torch.optim.NAdam, {}),
        (torch.optim.Adadelta, {}),
    ],
)
def test_the_state_of_optimizers_is_foreseen_to_the_byte(kind: Any, options: Any) -> None:
    loop = Loop(kind, **options)
    first: Any = loop.net[0]
    first[0].weight.requires_grad_(False)
    foreseen = ForeseenState(loop, lambda owner: owner.net.parameters())
    foreseen.look()
    expected = foreseen()
    loop.step(batch(4))
    before = reprise.live_bytes()
    loop.optimizer.step()
    assert reprise.live_bytes() - before == expected
    assert (expected > 0) == (options != {"lr": 0.1})
    assert foreseen() == 0


def test_a_schedule_that_has_replaced_the_step_is_not_advanced() -> None:
    loop = Loop()
    schedule = torch.optim.lr_scheduler.LinearLR(loop.optimizer)
    foreseen = ForeseenState(loop, lambda owner: owner.net.parameters())
    foreseen.look()
    assert foreseen() > STATE
    assert not loop.optimizer.state
    assert schedule.last_epoch == 0


def test_optimizers_of_other_models_are_not_counted() -> None:
    loop, other = Loop(torch.optim.SGD), Loop()
    foreseen = ForeseenState(loop, lambda owner: owner.net.parameters())
    foreseen.look()
    assert foreseen() == 0
    del other


def test_the_first_plan_of_graph_mode_holds_when_the_state_is_there() -> None:
    loop, x = Loop(), batch(1024)
    step = reprise.capture(loop.step, x)
    budget = limit(step.plan(budget="75%").budget_bytes)
    for _ in range(4):
        step(x)
        report = step.report()
        assert report.plans == 1
        assert report.budget_bytes == budget
        assert report.predicted_peak_bytes == report.measured_peak_bytes <= budget
        loop.update()


def test_the_first_plan_of_chain_mode_has_room_for_the_state() -> None:
    loop, x = Loop(), batch(1024)
    model = reprise.remat(loop.net, x, budget="80%", loss=lambda y: y.square().mean())
    budget = limit(model.planned.budget_bytes)
    for _ in range(3):
        model(x).square().mean().backward()
        report = model.report()
        assert report.budget_bytes == budget
        assert report.predicted_peak_bytes == report.measured_peak_bytes <= budget
        loop.update()


@pytest.mark.parametrize("mode", ["auto", "graph", "chain", "online"])
def test_a_share_contains_the_state_in_every_mode(mode: Any) -> None:
    budgets = []
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        loop, x = Loop(kind), batch(1024)
        step = by_kind(loop.step, budget="80%", mode=mode)
        for _ in range(3):
            step(x)
            loop.update()
        budgets.append(limit(step.report().budget_bytes))
        del loop, step
        gc.collect()
    assert 0.8 * STATE <= budgets[1] - budgets[0] <= 0.8 * STATE + 8192


@pytest.mark.parametrize("mode", ["auto", "graph", "chain", "online"])
def test_a_step_that_is_gone_holds_nothing(mode: Any) -> None:
    gc.collect()
    before = reprise.live_bytes()
    loop = Loop(torch.optim.SGD)
    step = by_kind(loop.step, budget="90%", mode=mode)
    step(batch(512))
    del loop, step
    gc.collect()
    assert reprise.live_bytes() == before


@pytest.mark.parametrize("mode", ["auto", "chain", "online"])
def test_nothing_stays_of_a_step_whose_owner_is_in_it(mode: Any) -> None:
    """The loop of a library holds the step, and the step reaches the loop."""
    gc.collect()
    before = reprise.live_bytes()

    def trained() -> None:
        loop = Loop(torch.optim.SGD)
        owner: dict[str, Any] = {}

        def step(x: Any) -> Any:
            assert owner
            return loop.step(x)

        owner["step"] = by_kind(step, budget="1 GiB", mode=mode)
        for _ in range(3):
            owner["step"](batch(64))
            loop.update()

    trained()
    gc.collect()
    assert reprise.live_bytes() == before


def test_a_share_is_the_same_bytes_whatever_lives_later() -> None:
    loop, x = Loop(), batch(1024)
    step = reprise.capture(loop.step, x, on_miss="recapture")
    budget = step.plan(budget="90%").budget_bytes
    held = torch.zeros(STATE // 8)
    assert step.plan(budget="90%").budget_bytes == budget
    step(batch(512))  # It is captured and planned again.
    assert step.report().budget_bytes == budget
    del held


def test_a_share_outlives_a_change_of_the_model() -> None:
    loop, x = Loop(), batch(1024)
    model = reprise.remat(loop.net, x, budget="100%")
    budget = model.planned.budget_bytes
    first: Any = loop.net[0]
    first[0].weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    model(batch(512))
    assert model.planned.budget_bytes == budget


def test_all_modes_of_a_train_step_have_the_same_bytes() -> None:
    budgets = []
    for mode in ("follow", "online"):
        gc.collect()
        held = reprise.live_bytes()
        loop, x = Loop(), batch(1024)
        step = reprise.train_step(loop.step, x, budget="80%", mode=mode)
        for rows in (1024, 1024, 512, 512, 512, 1024):
            step(x if rows == 1024 else batch(rows))
            loop.update()
            budgets.append(step.report().budget_bytes)
        assert budgets[-1] == budgets[-4] == budgets[-5]
        budgets = [limit(budgets[-1]) - held * 8 // 10]
        del loop, x, step
    assert len(set(budgets)) == 1


def test_memory_that_the_program_takes_later_is_named() -> None:
    loop, x = Loop(torch.optim.SGD), batch(1024)
    step = reprise.capture(loop.step, x)
    step.plan(budget="70%")
    step(x)
    loop.update()
    held = torch.zeros(1 << 19)
    with pytest.raises(reprise.BudgetError, match=r"outside of the step grew by 2\.00 MiB"):
        step(x)
    del held
    step(x)
    model = reprise.remat(loop.net, x, budget="70%")
    held = torch.zeros(1 << 19)
    with pytest.raises(reprise.BudgetError, match=r"outside of the step grew by 2\.00 MiB"):
        model(x)
    del held


def test_state_that_is_foreseen_is_named() -> None:
    loop, x = Loop(), batch(1024)
    step = reprise.capture(loop.step, x)
    with pytest.raises(reprise.BudgetError, match="for state that optimizers of the program make"):
        step.plan(budget="20%")


@pytest.mark.parametrize("mode", ["auto", "graph", "chain", "online"])
def test_a_first_batch_that_is_too_short_is_named(mode: Any) -> None:
    loop = Loop(torch.optim.SGD)
    step = by_kind(loop.step, budget="90%", mode=mode)
    step(batch(512))
    loop.update()
    with pytest.raises(reprise.BudgetError, match=r"first batch, whose inputs had 256\.0 KiB"):
        step(batch(4096))


def test_a_first_batch_that_is_too_short_is_named_by_a_captured_step() -> None:
    loop = Loop(torch.optim.SGD)
    step = reprise.capture(loop.step, batch(512), on_miss="recapture")
    step.plan(budget="90%")
    with pytest.raises(reprise.BudgetError, match="Begin with the largest batch, or name"):
        step(batch(4096))
