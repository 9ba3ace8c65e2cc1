"""The budget of a planned chain of stages: enforced, changed, reached with other options."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import (  # noqa: E402
    assert_same_bits,
    compare_steps,
    one_step,
    perceptron,
    state_of,
    vectors,
)
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


def test_the_budget_can_change() -> None:
    model = reprise.remat(perceptron(), vectors()[0])
    peak = model.planned.baseline.peak_bytes
    for share in (0.97, 0.9):
        model.set_budget(int(peak * share))
        one_step(model, *vectors())
        report = model.report()
        assert report.budget_bytes == int(peak * share)
        assert report.measured_peak_bytes <= report.budget_bytes
        model.zero_grad()
    with pytest.raises(reprise.BudgetError) as caught:
        reprise.remat(perceptron(), vectors()[0], budget="1 KiB")
    assert caught.value.budget == 1024
    assert caught.value.requested > 1024


@pytest.mark.parametrize("moment", ["forward", "between", "backward"])
def test_the_budget_is_enforced_and_nothing_is_lost(moment: str) -> None:
    """The exception is a BudgetError, whichever code makes the request.

    The request comes from a stage, from the caller's own code, or from a stage that is recomputed.
    """
    torch.manual_seed(7)
    greedy = False

    class Greedy(nn.Linear):
        def forward(self, x: Any) -> Any:
            if greedy:
                torch.empty(1 << 24)
            return torch.relu(super().forward(x))

    source = nn.Sequential(*(Greedy(64, 64) for _ in range(8)))
    x, y = vectors(1024)
    model = reprise.remat(source, x, budget="75%")
    plan = model.planned.plan
    assert plan is not None
    assert reprise.explain(model.chain, plan).recomputed
    one_step(model, x, y)
    before = state_of(model)
    output: Any = None
    loss: Any = None
    with pytest.raises(reprise.BudgetError) as caught:
        greedy = moment == "forward"
        output = model(x)
        if moment == "between":
            torch.empty(1 << 24)
        loss = F.cross_entropy(output, y)
        greedy = moment == "backward"
        loss.backward()
    error = caught.value
    assert error.requested == 1 << 26
    assert 0 < error.live <= error.budget
    greedy = False
    if moment == "between":  # The caller has to drop the step that was begun.
        del output
        return
    output = loss = None  # Otherwise their bytes would be part of the next step's budget.
    del error, caught
    gc.collect()  # Tracebacks and frames hold each other, and the frames hold tensors of the step.
    assert_same_bits(state_of(model), before)
    one_step(model, x, y)


def test_the_curve_of_a_model() -> None:
    source = perceptron()
    x, _ = vectors()
    curve = reprise.frontier(source, x, time_limit=5)
    assert len(curve.points) > 1
    assert "<svg" in curve._repr_html_()
    assert curve.baseline is not None
    least = curve.points[0].budget_bytes
    assert least < curve.baseline.peak_bytes
    profile = reprise.profile(source, x)
    assert isinstance(profile.problem, reprise.Chain)
    assert profile.device == "cpu"


class Perceptron(nn.Module):
    """A stage of several layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Any) -> Any:
        inner = F.gelu(self.wide(self.norm(x)))
        return x + F.dropout(self.narrow(inner), 0.2, self.training)


def test_stages_keep_less_in_other_ways() -> None:
    """The planner chooses among the options of each stage, and the bits are the same."""
    torch.manual_seed(4)
    plain = nn.Sequential(*(Perceptron() for _ in range(4)), nn.Linear(64, 10))
    x, y = vectors(2048)
    profile = reprise.profile(plain, x)
    assert isinstance(profile.problem, reprise.Chain)
    names = {o.name for stage in profile.problem.stages for o in stage.options}
    assert names == {"keep", "smaller", "rebuild"}
    without = reprise.profile(plain, x, alternatives=[])
    assert isinstance(without.problem, reprise.Chain)
    assert {o.name for stage in without.problem.stages for o in stage.options} == {"keep"}
    with pytest.raises(reprise.InputError, match="graph mode"):
        reprise.profile(plain, x, alternatives=["in-place"])

    # Without these options there is no plan below the floor, whatever times were measured.
    floor = reprise.plan(without.problem, budget=1).smallest_budget_bytes
    assert floor is not None
    plan = reprise.plan(profile.problem, budget=floor - 1).plan
    assert plan is not None
    assert {action.variant for action in plan.actions} & {"smaller", "rebuild"}
    model = reprise.remat(copy.deepcopy(plain), x, budget="70%")
    compare_steps(model, plain, x, y)


def test_nothing_is_left_behind() -> None:
    x, y = vectors()
    reprise.install_cpu_allocator()
    gc.collect()  # Other tests may have left something to the collector.
    before = reprise.live_bytes()
    model = reprise.remat(perceptron(), x, budget="95%")
    one_step(model, x, y)
    begun = model(x)  # This step never comes to its backward.
    del model, begun
    gc.collect()
    assert reprise.live_bytes() == before


def test_memory_is_counted() -> None:
    reprise.install_cpu_allocator()
    before = reprise.live_bytes()
    held = torch.empty(1000)
    assert reprise.live_bytes() - before == 4032  # Bytes are counted in multiples of 64.
    reprise.reset_peak()
    torch.empty(1000)
    assert reprise.peak_bytes() - before == 2 * 4032
    del held
    assert reprise.live_bytes() == before


@pytest.mark.parametrize("last", ["sum", "product", "view"])
def test_a_loss_that_is_the_output_of_the_model(last: str) -> None:
    """Autograd holds the 1 from which the backward pass starts, and hands it to the last stage."""
    ends = {
        "sum": lambda x: x.sum(0, keepdim=True).view(()),
        "product": lambda x: x.sum() * torch.ones(()),
        "view": lambda x: (x.view(1, -1) @ torch.ones(x.numel(), 1)).view(()),
    }
    x = torch.randn(1000, requires_grad=True)
    model = reprise.remat([torch.sin] * 6 + [ends[last]], x, budget="85%", loss=lambda out: out)
    model(x).backward()
    report = model.report()
    assert report.measured_peak_bytes == report.predicted_peak_bytes


@pytest.mark.parametrize(
    "planner",
    [
        "chain",
        "chain_slots",
        "floating",
        "periodic",
        "revolve",
        "min_peak",
        "pofo",
        "double_checkpoint",
        "block4",
    ],
)
def test_plans_of_every_planner_of_chains_run(planner: str) -> None:
    """Planners of the literature, too: with the bits of plain training and the predicted peak."""
    reprise.install_cpu_allocator()
    x = torch.randn(512, 64, generator=torch.Generator().manual_seed(1))

    def network() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(*(m for _ in range(8) for m in (nn.Linear(64, 64), nn.GELU())))

    def loss(y: Any) -> Any:
        return y.square().mean()

    plain, net = network(), network()
    loss(plain(x)).backward()
    model = reprise.remat(net, x, budget="80%", planner=planner, loss=loss)
    loss(model(x)).backward()
    report, plan = model.report(), model.planned.plan
    assert plan is not None
    assert plan.planner == planner
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    for one, other in zip(plain.parameters(), net.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)
