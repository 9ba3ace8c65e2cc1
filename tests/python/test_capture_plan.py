"""The plans of a captured step: budgets, alternatives, plans from elsewhere, run logs."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import assert_same_bits, perceptron, simple_step, state_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def test_a_budget_that_nothing_fits_leaves_the_plan_before() -> None:
    model = perceptron()
    x = torch.randn(256, 64)
    step = reprise.capture(simple_step(model), x)
    with pytest.raises(reprise.InputError, match="planned"):
        _ = step.planned
    good = step.plan(budget="95%")
    with pytest.raises(reprise.BudgetError) as caught:
        step.plan(budget=1000)
    assert caught.value.budget == 1000
    assert caught.value.requested > 1000
    assert step.planned == good
    step(x)


def test_a_plan_made_elsewhere() -> None:
    model = perceptron()
    x = torch.randn(256, 64)
    step = reprise.capture(simple_step(model), x)
    found = reprise.plan(step.graph, budget="92%", time_limit=5)
    assert found.plan is not None
    assert step.profile().problem == step.graph
    step.use(found.plan)
    plain = copy.deepcopy(model)
    torch.manual_seed(8)
    loss = step(x)
    mine = state_of(model)
    torch.manual_seed(8)
    assert torch.equal(loss, simple_step(plain)(x))
    assert_same_bits(mine, state_of(plain))
    with pytest.raises(reprise.InputError, match="not valid"):
        step.use(found.plan, budget=found.plan.peak_bytes - 1)


def test_the_planner_may_choose_other_ways() -> None:
    """The bits are the same with all alternatives, with one kind, and with none."""
    torch.manual_seed(9)
    x = torch.randn(256, 64)
    model = perceptron()
    ways, states = [], []
    for allowed in (None, ["in-place"], []):
        one = copy.deepcopy(model)
        step = reprise.capture(simple_step(one), x, alternatives=allowed)
        ways.append(sum(len(op.variants) for op in step.graph.ops))
        step.plan(budget="95%")
        torch.manual_seed(10)
        step(x)
        states.append(state_of(one))
    assert ways[0] > ways[2]
    assert ways[0] >= ways[1] >= ways[2]
    for state in states[1:]:
        assert_same_bits(state, states[0])
    with pytest.raises(reprise.InputError, match="magic"):
        reprise.capture(simple_step(model), x, alternatives=["magic"])


def test_other_rounding_where_it_is_named() -> None:
    """The head of many classes fits only in parts. Weights of classes make it round."""
    torch.manual_seed(9)
    x, y = torch.randn(1024, 16), torch.randint(3000, (1024,))
    head, weight = nn.Linear(16, 3000), torch.rand(3000) + 0.1

    def train(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(head(x), y, weight)
        loss.backward()
        return loss

    kinds = {one.name: one.exactness for one in reprise.alternatives()}
    assert kinds["linear-cross-entropy-by-rows"] == "bitwise"
    assert kinds["forward-ad"] == "rounding"
    names = [one.name for one in reprise.alternatives() if one.exactness != "approximate"]
    with pytest.raises(reprise.BudgetError):
        reprise.capture(train, x, y).plan(budget=10_000_000)
    step = reprise.capture(train, x, y, alternatives=names)
    step.plan(budget=10_000_000)
    loss = step(x, y)
    mine = [p.grad for p in head.parameters()]
    head.zero_grad()
    torch.testing.assert_close(loss, train(x, y).detach())
    for a, b in zip(mine, head.parameters(), strict=True):
        torch.testing.assert_close(a, b.grad)
    assert step.report().measured_peak_bytes <= 10_000_000


def test_a_device_without_graphs_runs_operation_by_operation() -> None:
    model = perceptron()
    x = torch.randn(256, 64)
    step = reprise.capture(simple_step(model), x)
    step.plan(budget="95%", device_graph=True)
    plain = copy.deepcopy(model)
    for _ in range(3):
        model.zero_grad()
        plain.zero_grad()
        torch.manual_seed(8)
        loss = step(x)
        torch.manual_seed(8)
        assert torch.equal(loss, simple_step(plain)(x))
    assert_same_bits(state_of(model), state_of(plain))
    report = step.report()
    assert report.graphed == 0
    assert "cpu has no graphs" in report.no_device_graph
    assert report.budget_bytes is not None
    assert report.measured_peak_bytes <= report.budget_bytes
    step.plan(budget="95%")
    step(x)
    assert step.report().no_device_graph == ""


def test_the_automatic_budget_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(256, 64)
    step = reprise.capture(simple_step(perceptron()), x)
    result = step.plan(budget="auto")
    said = capsys.readouterr().err
    assert result.budget_bytes is not None
    assert str(result.budget_bytes) in said


def test_measured_steps_are_what_was_planned(tmp_path: pathlib.Path) -> None:
    model = perceptron()
    x = torch.randn(256, 64)

    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    captured = reprise.capture(step, x)
    captured.plan(budget="80%")
    chain = reprise.remat(perceptron(), x, budget="80%")

    def chain_step() -> None:
        output = chain(x)  # The output is held, as the plan expects it.
        output.square().mean().backward()

    for one, run in ((captured, lambda: captured(x)), (chain, chain_step)):
        assert one.run_log() is None
        one.log_steps(3)
        for _ in range(4):
            run()
        log = one.run_log()
        assert log is not None
        assert 1 <= log.steps <= 3
        assert len(log.actions) > 5
        assert all(entry.planned_bytes == entry.measured_bytes for entry in log.actions)
        assert all(entry.measured_ns > 0 for entry in log.actions)
        log.save(tmp_path / "log.json")
        assert reprise.load(tmp_path / "log.json") == log
        one.save_report(tmp_path / "page.html")
        page = (tmp_path / "page.html").read_text()
        assert "Planned and measured" in page
        assert ("What the step depends on" in page) == (one is captured)
        assert ("compared: settings" in page) == (one is captured)
