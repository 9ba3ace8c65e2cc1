"""A stage that runs again right before its backward leaves out what only its output needs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from models import GptBlock, GptConfig  # noqa: E402
from torch import Tensor, nn  # noqa: E402

pytestmark = pytest.mark.usefixtures("runtime")


class Widening(nn.Module):
    """A stage whose last layer, the widest, only makes the output."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = x + self.down(torch.tanh(self.up(x)))
        return y


def planned(stages: list[Any], x: Tensor, **options: Any) -> reprise.PlannedModule:
    """Plans for the smallest budget, where most stages run again."""
    options.setdefault("loss", lambda output: output.square().mean())
    options |= {"output_held": False, "alternatives": ()}
    unlimited = reprise.remat(stages, x, **options)
    smallest = reprise.plan(unlimited.chain, budget=1).smallest_budget_bytes
    assert smallest is not None
    return reprise.remat(stages, x, budget=smallest, **options)


def stops(model: reprise.PlannedModule) -> list[str]:
    """Returns the forwards of the plan that stop early."""
    plan = model.planned.plan
    assert plan is not None
    return [a.id for a in plan.actions if a.kind == "run" and (a.variant or "").endswith("+stop")]


def gradients_of(model: Callable[[Tensor], Tensor], x: Tensor) -> None:
    torch.autograd.backward(model(x).square().mean())


def assert_same_gradients(mine: nn.Module, plain: nn.Module) -> None:
    pairs = zip(mine.parameters(), plain.parameters(), strict=True)
    assert all(p.grad is not None and torch.equal(p.grad, q.grad) for p, q in pairs)


def test_a_re_run_leaves_out_the_last_layer() -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(*(Widening() for _ in range(6)))
    source = copy.deepcopy(plain)
    x = torch.randn(64, 32)
    model = planned(list(source), x, module=source)
    assert len(stops(model)) >= 2
    for stage in model.chain.stages[:-1]:
        keep = stage.options[0]
        assert keep.stopped is not None and not keep.reads_output
        assert keep.stopped.ns <= keep.forward.ns
        assert keep.stopped.workspace_bytes < keep.forward.workspace_bytes + stage.output_bytes
    gradients_of(model, x)
    gradients_of(plain, x)
    assert_same_gradients(source, plain)
    report = model.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_blocks_with_dropout_have_the_bits_of_plain_training(dropout: float) -> None:
    torch.manual_seed(2)
    config = GptConfig(dropout=dropout)
    plain = nn.Sequential(*(GptBlock(config) for _ in range(4)))
    source = copy.deepcopy(plain)
    x = torch.randn(2, 16, config.width)
    model = planned(list(source), x, module=source)
    assert stops(model)
    torch.manual_seed(3)
    gradients_of(model, x)
    after = torch.get_rng_state()
    torch.manual_seed(3)
    gradients_of(plain, x)
    assert torch.equal(torch.get_rng_state(), after)
    assert_same_gradients(source, plain)


class Switched(Widening):
    """A stage that runs another operation when an attribute says so."""

    more = False

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y * 0.5 if self.more else y


def test_a_stage_that_runs_other_operations_runs_as_a_whole() -> None:
    torch.manual_seed(4)
    plain = nn.Sequential(*(Switched() for _ in range(5)))
    source = copy.deepcopy(plain)
    x = torch.randn(64, 32)
    model = planned(list(source), x, module=source)
    assert stops(model)
    gradients_of(model, x)
    gradients_of(plain, x)
    for one in (*plain, *source):
        one.more = True
        one.zero_grad()
    gradients_of(model, x)
    gradients_of(plain, x)
    assert_same_gradients(source, plain)


class Reading(Widening):
    """A stage that gives a number of its output to the program."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.largest = float(y.detach().abs().max())
        return y


class Holding(Widening):
    """A stage that holds what its last layer made."""

    def forward(self, x: Tensor) -> Tensor:
        self.made = self.down(torch.tanh(self.up(x))).detach()
        y: Tensor = x + self.made + self.down(torch.tanh(self.up(x)))
        return y


class Numpy(Widening):
    """A stage that reads its output where no operator is seen."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        self.sum = y.detach().numpy().sum()
        return y


@pytest.mark.parametrize("kind", [Reading, Holding, Numpy])
def test_what_the_program_reads_is_made_again(kind: type[Widening]) -> None:
    torch.manual_seed(5)
    plain = nn.Sequential(*(kind() for _ in range(4)))
    source = copy.deepcopy(plain)
    x = torch.randn(64, 32)
    model = planned(list(source), x, module=source)
    if kind is not Holding:
        assert not stops(model)
    gradients_of(model, x)
    gradients_of(plain, x)
    assert_same_gradients(source, plain)
    if kind is Holding:
        for ours, theirs in zip(source, plain, strict=True):
            assert torch.equal(ours.made, theirs.made)


def test_tuples_that_pass_through_are_not_copied_again() -> None:
    torch.manual_seed(6)
    plain = nn.ModuleList(Widening() for _ in range(5))
    source = copy.deepcopy(plain)
    x = torch.randn(64, 32)

    def through(stages: Any) -> list[Any]:
        first, *others = stages
        return [
            lambda x: (x, first(x)),
            *(lambda values, one=one: (values[0], one(values[1])) for one in others),
        ]

    model = planned(through(source), x, module=source, loss=lambda out: out[1].square().mean())
    assert stops(model)
    model(x)[1].square().mean().backward()
    values: Any = x
    for stage in through(plain):
        values = stage(values)
    values[1].square().mean().backward()
    assert_same_gradients(source, plain)
    report = model.report()
    assert report.predicted_peak_bytes == report.measured_peak_bytes
