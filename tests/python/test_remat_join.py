"""Branches that meet in one loss, planned: bits, bytes, and the budget."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import assert_same_bits, state_of  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402


class Pair(nn.Module):
    """Returns a dict, so that branches hand over structures."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inside = nn.Linear(width, width)

    def forward(self, value: Any) -> Any:
        x = value["x"] if isinstance(value, dict) else value
        return {"x": torch.tanh(self.inside(x))}


def tower(depth: int = 5, width: int = 64) -> nn.Sequential:
    torch.manual_seed(5)
    layers = [m for _ in range(depth) for m in (nn.Linear(width, width), nn.BatchNorm1d(width))]
    return nn.Sequential(*layers, nn.Dropout(0.2), Pair(width), Pair(width))


def inputs(count: int = 512) -> tuple[Any, Any]:
    torch.manual_seed(6)
    return torch.randn(count, 64), torch.randn(count, 64)


def contrast(outputs: Any) -> Any:
    apart = F.pairwise_distance(outputs[0]["x"], outputs[1]["x"])
    return (apart**2).mean() + (2 - apart).clamp_min(0).mean()


def smallest(model: reprise.RematJoin, *samples: Any) -> int:
    model.set_budget(1)
    with pytest.raises(reprise.BudgetError) as caught:
        model.plan_for(*samples)
    return caught.value.requested


def step(model: nn.Module, forward: Any, loss: Any) -> Any:
    model.zero_grad()
    torch.manual_seed(3)
    value = loss(forward())
    value.backward()
    return value.detach()


def test_a_siamese_network_at_every_budget() -> None:
    a, b = inputs()
    plain = tower()
    mine = copy.deepcopy(plain)
    model = reprise.remat_join(
        {"left": mine, "right": mine}, (a, b), module=mine, loss=contrast, output_held=False
    )
    assert list(model.state_dict()) == list(plain.state_dict())
    # From here on the gradients of plain training are live, too.
    expected = step(plain, lambda: (plain(a), plain(b)), contrast)
    assert torch.equal(step(mine, lambda: model(a, b), contrast), expected)
    mine.zero_grad()
    plan = model.plan_for(a, b).plan
    assert plan is not None
    peak = plan.peak_bytes
    least = smallest(model, a, b)
    assert least < peak
    model.set_budget(least - 1)
    with pytest.raises(reprise.BudgetError):
        model.plan_for(a, b)
    for budget in (least, (least + peak) // 2, peak):
        model.set_budget(budget)
        for _ in range(2):
            expected = step(plain, lambda: (plain(a), plain(b)), contrast)
            assert torch.equal(step(mine, lambda: model(a, b), contrast), expected)
            assert_same_bits(state_of(mine), state_of(plain))
            report = model.report()
            assert report.predicted_peak_bytes == report.measured_peak_bytes <= budget
    assert len(model.join["shared_weights"]) > 0
    result = reprise.plan(model.join, budget=peak)
    assert result.plan is not None
    assert result.plan.planner == "join"


def test_a_tail_is_called_with_what_the_branches_return() -> None:
    a, b = inputs()

    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = nn.Linear(128, 10)

        def forward(self, left: Any, right: Any) -> Any:
            return self.inside(torch.cat((left["x"], right), 1))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.head = tower(3), Head()
            self.right = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64))

        def forward(self, x: Any, y: Any) -> Any:
            return F.relu(self.head(self.left(x), self.right(y)))

    plain = Net()
    mine = copy.deepcopy(plain)
    target = torch.randint(10, (512,))

    def loss(scores: Any) -> Any:
        return F.cross_entropy(scores, target)

    model = reprise.remat_join(
        {"left": mine.left, "right": mine.right},
        (a, b),
        tail=[mine.head, F.relu],
        module=mine,
        loss=loss,
    )
    expected = step(plain, lambda: plain(a, b), loss)  # its gradients are live from here on
    assert torch.equal(step(mine, lambda: model(a, b), loss), expected)
    mine.zero_grad()
    model.set_budget(smallest(model, a, b))
    for _ in range(2):
        expected = step(plain, lambda: plain(a, b), loss)
        assert torch.equal(step(mine, lambda: model(a, b), loss), expected)
        assert_same_bits(state_of(mine), state_of(plain))
    with torch.no_grad():
        mine.eval(), plain.eval()
        assert torch.equal(model(a, b), plain(a, b))


@pytest.mark.parametrize("moment", ["forward", "backward"])
def test_the_budget_is_enforced_and_nothing_is_lost(moment: str) -> None:
    greedy = False

    def grasp(x: Any) -> Any:
        if greedy:
            torch.empty(1 << 24)
        return torch.sigmoid(x)

    a, b = inputs()
    net = nn.Sequential(*list(tower(3))[:-2])
    stages: list[Any] = [*list(net), grasp, grasp]

    def loss(outputs: Any) -> Any:
        return F.mse_loss(*outputs)

    model = reprise.remat_join(
        {"left": stages, "right": stages}, (a, b), module=net, loss=loss, output_held=False
    )
    model.set_budget(smallest(model, a, b))
    step(net, lambda: model(a, b), loss)
    assert model.planned.plan is not None
    assert reprise.explain(model.join, model.planned.plan).recomputed
    net.zero_grad()
    before = state_of(net)
    random = torch.get_rng_state()
    value: Any = None
    with pytest.raises(reprise.BudgetError) as caught:
        greedy = moment == "forward"
        value = loss(model(a, b))
        greedy = True
        value.backward()
    greedy = False
    value = None
    del caught
    gc.collect()
    assert_same_bits(state_of(net), before)
    assert torch.equal(torch.get_rng_state(), random)
    before.clear()  # These copies have no room in the smallest budget.
    del random
    step(net, lambda: model(a, b), loss)


def test_mistakes_are_named() -> None:
    a, b = inputs(8)
    net = tower(2)
    with pytest.raises(reprise.InputError, match="loss="):
        reprise.remat_join({"left": net, "right": net}, (a, b))
    with pytest.raises(reprise.InputError, match="two branches"):
        reprise.remat_join({"left": net}, (a,), loss=contrast)
    with pytest.raises(reprise.InputError, match=r"2 branches \(left, right\) and was given 1"):
        reprise.remat_join({"left": net, "right": net}, (a,), loss=contrast)
    with pytest.raises(reprise.InputError, match="branch 'right' was given no tensor"):
        reprise.remat_join({"left": net, "right": net}, (a, 3), loss=contrast)


def test_a_copy_plans_for_itself() -> None:
    a, b = inputs(64)
    net = tower(2)
    model = reprise.remat_join({"left": net, "right": net}, (a, b), loss=contrast)
    other = copy.deepcopy(model)
    assert list(other.state_dict()) == list(model.state_dict())
    one = step(model, lambda: model(a, b), contrast)
    assert torch.equal(step(other, lambda: other(a, b), contrast), one)
