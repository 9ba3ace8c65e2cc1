"""Backwards that a pipeline splits: gradients of inputs first, those of weights later."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from pipelines import (  # noqa: E402
    MICRO,
    ROWS,
    STEPS,
    TIMEOUT,
    WIDTH,
    Apply,
    accumulate,
    assert_bytes,
    assert_equal,
    batch,
    images,
    loss_of,
    made,
    network,
    optimizer_of,
    parts_of,
    run,
    runs_again,
    train,
)
from reprise import _core  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from two_ranks import run_ranks  # noqa: E402


class Tied(nn.Module):
    """Uses one weight twice, so that its gradient is a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Any) -> Any:
        return F.linear(torch.tanh(F.linear(x, self.weight)), self.weight.t())


class Normed(nn.Module):
    """A convolution with a norm of its weight: gradients go on behind the cut."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.utils.parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1))

    def forward(self, x: Any) -> Any:
        return x + self.convolution(x.view(-1, 4, WIDTH // 4)).view(-1, WIDTH)


def kinds(step: Any) -> set[str]:
    return {action[0] for device in step.plan["devices"] for action in device["order"]}


def stages_that_split(step: Any) -> list[bool]:
    return ["weight_part" in stage for stage in step.problem["stages"]]


def many_stages() -> list[nn.Module]:
    """Stages of many kinds. Those of the first part draw random numbers."""
    stages = network()
    stages[1] = nn.Sequential(stages[1], nn.Dropout(0.3))
    stages[2] = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())
    stages[3] = nn.Sequential(Tied(), nn.BatchNorm1d(WIDTH), nn.ReLU())
    stages[6] = Normed()
    return stages


def equals_accumulation(rank: int) -> None:
    reprise.install_cpu_allocator()
    stages = many_stages()
    torch.manual_seed(3)
    expected = accumulate(stages, rank, 2, 1)
    torch.manual_seed(3)
    step = train(rank, stages, expected, 1, 2, planner="zb_h1")
    assert {"input_gradient", "weight_gradient"} <= kinds(step)
    assert "backward" not in kinds(step)
    # Stages without weights are not split, and all others are.
    weights = [stage["weight_gradient_bytes"] > 0 for stage in step.problem["chain"]["stages"]]
    assert stages_that_split(step) == weights and sum(weights) == 10
    # A part that recomputes itself runs its forward again for the input gradients.
    free = max(device["peak_bytes"] for device in step.plan["devices"])
    torch.manual_seed(3)
    step = train(rank, stages, expected, 1, 2, planner="zb_h1", budget=free * 96 // 100)
    assert runs_again(step) > 0 and "weight_gradient" in kinds(step)


def gradients_of_one_process(stages: list[nn.Module]) -> list[list[Any]]:
    """Returns the gradients of each stage, and the losses behind them."""
    whole = copy.deepcopy(stages)
    x, y = batch()
    losses = []
    for a, b in zip(x.chunk(MICRO), y.chunk(MICRO), strict=True):
        loss = loss_of(nn.Sequential(*whole)(a), b)
        loss.backward()
        losses.append(loss.detach())
    return [[p.grad for p in stage.parameters()] for stage in whole] + [losses]


def pytorch_runs_the_stages(rank: int) -> None:
    """PyTorch's own schedules run our halves of the backward."""
    from torch.distributed.pipelining import schedules

    reprise.install_cpu_allocator()
    stages = many_stages()
    torch.manual_seed(3)
    expected = gradients_of_one_process(stages)
    for kind, numbers in (
        (schedules.ScheduleInterleavedZeroBubble, ([0, 2], [1, 3])),
        (schedules.ScheduleZBVZeroBubble, ([0, 3], [1, 2])),
    ):
        mine = copy.deepcopy(stages)
        made_stages = []
        for q in numbers[rank]:
            part = nn.Sequential(*mine[2 * q : 2 * q + 2])
            rows = ROWS // MICRO
            sample = torch.randn(rows, WIDTH) if q else batch()[0][:rows]
            made_stages.append(reprise.pipeline_stage(part, sample, q, 4, micro_batches=MICRO))
            assert made_stages[-1].submod.not_split == []
        schedule = kind(made_stages, n_microbatches=MICRO, loss_fn=loss_of, scale_grads=False)
        x, y = batch()
        last = 3 in numbers[rank]
        torch.manual_seed(3)
        for _ in range(STEPS):
            losses: list[Any] = []
            for stage in mine:
                stage.zero_grad()
            schedule.step(
                *((x,) if rank == 0 else ()), **({"target": y, "losses": losses} if last else {})
            )
            torch.manual_seed(3)
            if last:
                assert_equal(losses, expected[-1])
            for q in numbers[rank]:
                for number in (2 * q, 2 * q + 1):
                    found = [p.grad for p in mine[number].parameters()]
                    assert_equal(found, expected[number])


def two_ranks(rank: int) -> None:
    equals_accumulation(rank)
    pytorch_runs_the_stages(rank)


def test_bits_are_those_of_accumulation() -> None:
    run_ranks(two_ranks, timeout=TIMEOUT)


def split_all(step: Any, delay: int) -> None:
    """Splits every backward of the plan. Weight gradients come `delay` micro-batches later."""
    problem, plan = step.problem, step.plan
    device = plan["devices"][0]
    order: list[Any] = []
    for action in device["order"]:
        if action[0] != "backward":
            order.append(action)
            continue
        _, part, batch = action
        order.append(["input_gradient", part, batch])
        late = [batch - delay] if batch < MICRO - 1 else range(max(0, batch - delay), MICRO)
        order += [["weight_gradient", part, b] for b in late if b >= 0]
    device["order"] = order
    plan |= {"lower_bound_ns": 0, "termination": "feasible"}
    time, peaks = _core.simulate_pipeline(json.dumps(problem), json.dumps(plan))[:2]
    plan["time_ns"], device["peak_bytes"] = time, peaks[0]
    step.use(plan)
    assert step.plan["devices"][0]["order"] == order
    device["peak_bytes"] -= 1
    with pytest.raises(reprise.InputError, match="the plan is not"):
        step.use(plan)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("delay", [0, 2, MICRO])
def test_four_parts_in_one_process(delay: int) -> None:
    stages = many_stages()
    torch.manual_seed(3)
    expected = accumulate(stages, 0, 1, 4)
    parts = parts_of(copy.deepcopy(stages), 0, 1, 4)
    step = made(0, parts, 1)
    optimizer = optimizer_of(parts)
    torch.manual_seed(3)
    for number in range(STEPS):
        optimizer.zero_grad()
        if number == 0:
            split_all(step, delay)
        losses = run(step, 0, 1)
        assert_bytes(step)
        optimizer.step()
        assert_equal([losses, *images(parts, True)], expected[number])


class Twice(torch.autograd.Function):  # type: ignore[name-defined]
    """Its backward runs once only."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.ran = False
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        if ctx.ran:
            raise RuntimeError("it ran already")
        ctx.ran = True
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


class Watched(nn.Module):
    """Looks at a gradient, or runs a function of its own."""

    def __init__(self, hook: bool) -> None:
        super().__init__()
        self.weight, self.hook = nn.Parameter(torch.ones(WIDTH)), hook

    def forward(self, x: Any) -> Any:
        if not self.hook:
            return Twice.apply(x, self.weight)
        y = x * self.weight
        if y.requires_grad:
            y.register_hook(lambda gradient: 2 * gradient)
        return y.exp()


@pytest.mark.usefixtures("alone")
def test_a_stage_that_cannot_be_split_says_why() -> None:
    stages = [Watched(True), Watched(False), Apply(torch.sigmoid), nn.Linear(WIDTH, 97)]
    parts = [nn.Sequential(nn.Embedding(97, WIDTH), *stages)]
    step = made(0, parts, 1)
    assert stages_that_split(step) == [True, False, False, False, True]
    first, second = step.not_split()
    assert first.startswith("stage '0.1': ") and "a hook looks at a gradient" in first
    assert second.startswith("stage '0.2': ") and "it ran already" in second
    x = torch.zeros(4, WIDTH, requires_grad=True)
    with pytest.raises(reprise.InputError, match=r"stage '0\.0': .*it ran already"):
        reprise.pipeline(
            [nn.Sequential(Watched(False))],
            x,
            micro_batches=2,
            loss=lambda y, t: y.sum(),
            planner="zb_h1",
        )
