"""Codecs of captured steps: bounds, bits of what they leave alone, and trainings that converge."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import reprise
import torch
from reprise._planning.plan import ProblemId
from torch import nn
from torch.nn import functional as F

WIDTH = 64


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(16, WIDTH)]
    for _ in range(3):
        layers += [nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 4))


def batch() -> tuple[Any, Any]:
    """Returns points and the quadrants of the planes through their first coordinates."""
    x = torch.randn(256, 16)
    return x, (x[:, 0] * x[:, 1] > 0).long() + 2 * (x[:, 2] > 0).long()


def forced(graph: reprise.Graph, kind: str) -> reprise.Plan:
    """Returns the plan that uses a kind wherever it can, as if it took no time."""
    costs: dict[str, int] = {}
    for choice in graph.choices:
        for one in choice.realizations[1:]:
            costs |= dict.fromkeys(one.ops, 0 if one.name == kind else 10**12)

    def priced(op: reprise.Op) -> reprise.Op:
        variants = (replace(one, ns=costs.get(op.id, one.ns)) for one in op.variants)
        return replace(op, variants=tuple(variants))

    cheap = replace(graph, ops=tuple(priced(op) for op in graph.ops))
    found = reprise.plan(cheap, planner="graph", allow="approximate", time_limit=0.3).plan
    plain = reprise.plan(graph, planner="keep_all", time_limit=0.3)
    assert found is not None
    times = {(op.id, one.name): one.ns for op in graph.ops for one in op.variants}
    time = sum(times[one.id, one.variant] for one in found.actions if one.kind == "run")
    return replace(
        found,
        problem=ProblemId("reprise.graph", graph.name),
        time_ns=time,
        lower_bound_ns=0,
        termination="feasible",
        baseline=plain.baseline,
    )


def captured(net: nn.Module, kind: str) -> reprise.CapturedStep:
    def train(x: Any, y: Any) -> Any:
        loss: Any = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    step = reprise.capture(train, *batch(), alternatives=[kind])
    step.use(forced(step.graph, kind))
    return step


@pytest.mark.parametrize("kind", ["compressed-8", "olive-4"])
def test_values_are_within_their_bounds_and_the_rest_is_exact(kind: str) -> None:
    net = network()
    step, (x, y) = captured(net, kind), batch()
    loss = F.cross_entropy(net(x), y)
    plain = torch.autograd.grad(loss, list(net.parameters()))

    def run(check: str) -> list[Any]:
        step.check_codecs(check)
        net.zero_grad()
        assert torch.equal(step(x, y), loss.detach())
        return [p.grad.clone() for p in net.parameters() if p.grad is not None]

    compared = run("compare")
    values = step.approximate_values()
    assert values
    for value in values:
        assert value.alternative == kind
        assert value.error is not None and value.error <= value.bound
        assert 3 * value.kept_bytes < value.plain_bytes
    assert any(not torch.equal(a, b) for a, b in zip(compared, plain, strict=True))
    for a, b in zip(run("bypass"), plain, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(run("none"), compared, strict=True):
        assert torch.equal(a, b)
    assert step.approximate_values()[0].error is None
    report = step.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
    explanation = step.explain().plan
    assert explanation is not None
    [use] = explanation.alternatives
    assert use.kind == kind and use.error_ppm > 0
    assert "of the largest element" in str(explanation)
    text = step.graph.to_json()
    assert json.loads(text)["version"] == 3
    assert reprise.Graph.from_json(text) == step.graph


@pytest.mark.parametrize("kind", ["compressed-8", "compressed-4", "olive-4"])
def test_a_training_converges(kind: str) -> None:
    net = network()
    step = captured(net, kind)
    assert len(step.approximate_values()) > 6
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(150):
        optimizer.zero_grad()
        step(*batch())
        optimizer.step()
    x, y = batch()
    assert float((net(x).argmax(1) == y).float().mean()) > 0.85


def test_what_is_refused() -> None:
    net = nn.Linear(16, 4)
    x, y = batch()

    def train(x: Any, y: Any) -> None:
        loss: Any = F.cross_entropy(net(x), y)
        loss.backward()

    step = reprise.capture(train, x, y)
    with pytest.raises(reprise.InputError, match='not "often"'):
        step.check_codecs("often")
    with pytest.raises(reprise.InputError, match="nothing was planned"):
        step.approximate_values()
    step.plan()
    assert step.approximate_values() == []
