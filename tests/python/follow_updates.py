"""Programs whose step is the whole loop: it drops gradients, and calls its optimizers itself."""

from __future__ import annotations

import copy
from typing import Any

import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, at, perceptron
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel

swa: Any = torch.optim.swa_utils


def state_of(*optimizers: Any) -> Any:
    return [copy.deepcopy(optimizer.state_dict()) for optimizer in optimizers]


def nothing_behind(_call: int, _result: Any) -> None:
    """The step has done its updates."""


def whole(
    kind: Any,
    model: Any = None,
    *,
    zeroes: str = "before",
    set_to_none: bool = True,
    reads: bool = False,
    clips: bool = False,
    **options: Any,
) -> Program:
    """Returns a step with its optimizer, in the order in which most loops have it."""
    model = perceptron(nn.Tanh(), nn.Dropout(0.2)) if model is None else model
    optimizer = kind(model.parameters(), **({"lr": 0.05} | options))
    losses: list[float] = []

    def step(x: Any, y: Any) -> Any:
        if zeroes == "before":
            optimizer.zero_grad(set_to_none=set_to_none)
        loss = backward(F.cross_entropy(model(x), y))
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if zeroes == "behind":
            optimizer.zero_grad(set_to_none=set_to_none)
        if reads:
            losses.append(loss.item())
        return loss.detach()

    def before(call: int) -> None:
        if call == CHANGE:
            optimizer.param_groups[0]["lr"] *= 0.5

    return Program(
        model, step, lambda: (losses, state_of(optimizer)), before=before, after=nothing_behind
    )


@program("numbers", 1)
def sgd_that_is_read_behind() -> Program:
    return whole(torch.optim.SGD, reads=True)


@program("numbers", 1)
def momentum_inside() -> Program:
    return whole(torch.optim.SGD, momentum=0.9, nesterov=True, zeroes="behind")


@program("numbers", 1)
def foreach_sgd_inside() -> Program:
    return whole(torch.optim.SGD, foreach=True, clips=True)


@program("numbers", 1)
def fused_sgd_inside() -> Program:
    return whole(torch.optim.SGD, fused=True)


@program("numbers", 1)
def adamw_inside() -> Program:
    return whole(torch.optim.AdamW, reads=True, clips=True)


@program("numbers", 1)
def foreach_adam_inside() -> Program:
    return whole(torch.optim.Adam, foreach=True, amsgrad=True)


@program("numbers", 1)
def fused_adamw_inside() -> Program:
    return whole(torch.optim.AdamW, fused=True, zeroes="behind")


@program("numbers", 1)
def adagrad_inside() -> Program:
    return whole(torch.optim.Adagrad)


@program("numbers", 1)
def rmsprop_with_batch_norm() -> Program:
    return whole(torch.optim.RMSprop, perceptron(nn.BatchNorm1d(8), nn.GELU()), momentum=0.5)


@program("structure", 1)
def gradients_set_to_zero() -> Program:
    return whole(torch.optim.SGD, set_to_none=False)


@program("structure", 1)
def two_networks_and_two_optimizers() -> Program:
    """A generator and its critic: each one's loss reads the other one's parameters."""
    generator = perceptron()
    critic = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    both = nn.ModuleList([generator, critic])
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in both]
    seen: list[Any] = []
    steps = {"critic": 1}

    def step(x: Any, y: Any) -> Any:
        for _ in range(steps["critic"]):
            optimizers[1].zero_grad()
            loss = F.softplus(critic(generator(x).detach())).mean() + F.softplus(-critic(y)).mean()
            backward(loss)
            optimizers[1].step()
        optimizers[0].zero_grad()
        backward(F.softplus(-critic(generator(x))).mean())
        optimizers[0].step()
        seen.append(loss.item())
        return loss.detach()

    def inputs(call: int) -> Any:
        draw = torch.Generator().manual_seed(call)
        return torch.randn(6, 4, generator=draw), torch.randn(6, 3, generator=draw)

    return Program(
        both,
        step,
        lambda: (seen, state_of(*optimizers)),
        inputs=inputs,
        before=at(CHANGE, lambda: steps.update(critic=2)),
        after=nothing_behind,
    )


@program("numbers", 1)
def a_schedule_and_an_average() -> Program:
    model = perceptron()
    average = AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 30)

    def step(x: Any, y: Any) -> Any:
        loss = backward(F.cross_entropy(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        average.update_parameters(model)
        return loss.detach()

    return Program(
        nn.ModuleList([model, average]),
        step,
        lambda: (schedule.get_last_lr(), state_of(optimizer)),
        after=nothing_behind,
    )


@program("structure", 1)
def updates_at_every_second_call() -> Program:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = {"every": 2, "calls": 0}

    def step(x: Any, y: Any) -> Any:
        state["calls"] += 1
        loss = backward(F.cross_entropy(model(x), y) / state["every"])
        if state["calls"] % state["every"] == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return Program(
        model,
        step,
        lambda: dict(state),
        before=at(CHANGE, lambda: state.update(every=3)),
        after=nothing_behind,
    )


@program("structure", 1)
def a_way_that_parts_behind_the_update() -> Program:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    norms: list[float] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = backward(F.cross_entropy(model(x), y))
        optimizer.step()
        norms.append(float(model[0].weight.norm()))  # of the parameter behind its update
        if state["clamps"]:
            with torch.no_grad():
                for p in model.parameters():
                    p.clamp_(-0.3, 0.3)
        return loss.detach()

    state = {"clamps": False}
    return Program(
        model,
        step,
        lambda: (norms, state_of(optimizer)),
        before=at(CHANGE, lambda: state.update(clamps=True)),
        after=nothing_behind,
    )


@program("structure", 1)
def weights_that_are_written_before_they_are_read() -> Program:
    """It normalizes a weight in its place in front of each pass, and reads it in two passes."""
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    passes = [2]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        for _ in range(passes[0]):
            with torch.no_grad():
                model[0].weight.div_(model[0].weight.norm())
            loss = backward(F.cross_entropy(model(x), y))
        optimizer.step()
        return loss.detach()

    return Program(
        model,
        step,
        before=at(CHANGE, lambda: passes.append(passes.pop() + 1)),
        after=nothing_behind,
    )


@program("reads", 1)
def a_scaler_inside() -> Program:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)
    factor = [1.0]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * factor[0]
        backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    def before(call: int) -> None:
        factor[0] = float("inf") if call == CHANGE else 1.0

    return Program(model, step, lambda: scaler.state_dict(), before=before, after=nothing_behind)
