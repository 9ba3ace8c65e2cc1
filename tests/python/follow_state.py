"""Programs whose step keeps the state of a training: optimizers, averages, memories."""

from __future__ import annotations

import copy
import itertools
import types
from collections import deque
from typing import Any

import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, batch, finish, perceptron
from torch import nn
from torch.nn import functional as F


def nothing_after(_call: int, _result: Any) -> None:
    """Does nothing: the step does the update itself."""


def trained_inside(name: str, changes: int, optimizer_of: Any, update: Any) -> None:
    """Registers a program whose step does the update, too.

    `update(model, optimizer, loss, call)` returns what the step returns beside the loss.
    """

    def build() -> Program:
        model, calls = perceptron(), itertools.count()
        optimizer = optimizer_of(model.parameters())

        def step(x: Any, y: Any) -> Any:
            loss = F.cross_entropy(model(x), y)
            return loss, update(model, optimizer, loss, next(calls))

        def kept() -> Any:
            return [repr(calls), optimizer.state_dict()]

        return Program(model, step, kept, after=nothing_after)

    build.__name__ = name
    program("effects", changes)(build)


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


def usual_update(_model: Any, optimizer: Any, loss: Any, _call: int) -> None:
    optimizer.zero_grad()
    backward(loss)
    optimizer.step()


def clipped_update(model: Any, optimizer: Any, loss: Any, _call: int) -> Any:
    optimizer.zero_grad()
    backward(loss)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    if norm.item() < 5.0:
        optimizer.step()
    return norm.item()


def decaying_update(_model: Any, optimizer: Any, loss: Any, call: int) -> Any:
    usual_update(_model, optimizer, loss, call)
    if call % 5 == 4:
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
            group["momentum"] = 0.5
    return optimizer.param_groups[0]["lr"]


def accumulating_update(_model: Any, optimizer: Any, loss: Any, call: int) -> bool:
    backward(loss / 4)
    if call % 4 == 3:
        optimizer.step()
        optimizer.zero_grad(set_to_none=call % 8 == 3)
    return call % 4 == 3


def growing_update(model: Any, optimizer: Any, loss: Any, call: int) -> int:
    usual_update(model, optimizer, loss, call)
    if call == CHANGE:
        model.append(nn.Linear(3, 3))
        optimizer.add_param_group({"params": model[-1].parameters(), "lr": 0.01})
    return len(optimizer.param_groups)


trained_inside("momentum_inside_the_step", 1, momentum, usual_update)
trained_inside("adam_inside_the_step", 1, adam, usual_update)
trained_inside("clipping_inside_the_step", 1, adam, clipped_update)
trained_inside("rate_of_the_optimizer_halves", 1, momentum, decaying_update)
trained_inside("gradients_that_accumulate", 1, adam, accumulating_update)
trained_inside("group_of_parameters_is_added", 1, momentum, growing_update)


@program("effects", 1)
def schedules_inside_the_step() -> Program:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    drops = torch.optim.lr_scheduler.StepLR(optimizer, step_size=6, gamma=0.5)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=2)

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = finish(model(x), y)
        optimizer.step()
        drops.step()
        plateau.step(loss.item())
        return loss, optimizer.param_groups[0]["lr"]

    def kept() -> Any:
        return [drops.last_epoch, plateau.best, plateau.num_bad_epochs]

    return Program(model, step, kept, after=nothing_after)


@program("effects", CHANGE)
def optimizer_is_exchanged() -> Program:
    model, calls = perceptron(), itertools.count()
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1), adam(model.parameters())]

    def step(x: Any, y: Any) -> Any:
        optimizer: Any = optimizers[next(calls) >= CHANGE]
        loss = finish(model(x), y)
        optimizer.step()
        optimizer.zero_grad()
        return loss, type(optimizer).__name__

    return Program(model, step, lambda: [o.state_dict() for o in optimizers], after=nothing_after)


@program("effects", 1)
def two_networks_in_turns() -> Program:
    parts = nn.ModuleDict({"maker": perceptron(), "judge": nn.Linear(3, 1)})
    optimizers = {name: adam(part.parameters()) for name, part in parts.items()}
    scores: list[float] = []

    def step(x: Any, y: Any) -> Any:
        turn = "judge" if len(scores) % 3 == 0 else "maker"
        made = parts["maker"](x if turn == "maker" else x + torch.randn_like(x))
        score = parts["judge"](made.detach() if turn == "judge" else made).mean()
        loss = F.softplus(score if turn == "judge" else -score) + F.cross_entropy(made, y)
        parts.zero_grad()
        backward(loss)
        optimizers[turn].step()
        scores.append(score.item())
        return {turn: loss}

    return Program(parts, step, lambda: scores, after=nothing_after)


@program("effects", 1)
def average_of_weights() -> Program:
    model, updates = perceptron(), 0
    average = copy.deepcopy(model).requires_grad_(False)

    def step(x: Any, y: Any) -> Any:
        nonlocal updates
        updates += 1
        decay = min(0.9, updates / (updates + 4))
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 1 - decay)
            target = average(x).softmax(1)
        logits = model(x)
        loss = F.cross_entropy(logits, y) + F.kl_div(logits.log_softmax(1), target, reduction="sum")
        return backward(loss)

    return Program(model, step, lambda: [updates, average.state_dict()])


@program("effects", 1)
def hidden_state_of_the_last_call() -> Program:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.GRUCell(4, 5), nn.Linear(5, 3)
            self.hidden: Any = None

        def forward(self, x: Any) -> Any:
            hidden = x.new_zeros(len(x), 5) if self.hidden is None else self.hidden
            hidden = self.cell(x, hidden)
            self.hidden = hidden.detach()
            return self.head(hidden)

    model, calls = Reader(), itertools.count()

    def step(x: Any, y: Any) -> Any:
        if next(calls) % 8 == 0:
            model.hidden = None
        return finish(model(x), y)

    return Program(model, step, lambda: model.hidden)


@program("effects", 1)
def last_activations_pull() -> Program:
    # The activations keep their graph until the next call detaches them.
    model = perceptron()
    last: list[Any] = []

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x))
        loss = F.cross_entropy(model[2](hidden), y)
        if last:
            loss = loss + 0.1 * (hidden - last.pop().detach()).square().mean()
        last.append(hidden)
        return backward(loss)

    return Program(model, step, lambda: last)


@program("effects", 1)
def memory_of_features() -> Program:
    model, memory, place = perceptron(), F.normalize(torch.randn(16, 3)), 0

    def step(x: Any, y: Any) -> Any:
        nonlocal place
        features = F.normalize(model(x), dim=1)
        loss = torch.logsumexp(features @ memory.T, dim=1).mean() + F.cross_entropy(features, y)
        backward(loss)
        rows = (torch.arange(len(x)) + place) % len(memory)
        memory[rows] = features.detach()
        place = int(rows[-1]) + 1
        return loss

    return Program(model, step, lambda: [memory, place])


@program("effects", 1)
def replay_of_old_batches() -> Program:
    model = perceptron()
    old: deque[Any] = deque(maxlen=5)

    def step(x: Any, y: Any) -> Any:
        old.append((x, y))
        xs, ys = zip(*itertools.islice(old, 0, None, 2), strict=True)
        return finish(model(torch.cat(xs)), torch.cat(ys)), len(old)

    return Program(model, step, lambda: old)


@program("effects", 6)
def results_by_key() -> Program:
    # The step remembers the features of a batch that comes again.
    model, known = perceptron(), {}

    def step(x: Any, y: Any) -> Any:
        key = round(x.sum().item(), 3)
        if key not in known:
            known[key] = x.detach().cumsum(0).tanh()
        return finish(model(known[key]), y), len(known)

    return Program(model, step, lambda: known, lambda call: batch(call % 6))


@program("effects", None)
def noise_is_drawn_again() -> Program:
    model, state = perceptron(nn.Dropout(0.3)), types.SimpleNamespace(random=None, calls=0)

    def step(x: Any, y: Any) -> Any:
        state.calls += 1
        if state.calls % 5 == 0:
            torch.manual_seed(state.calls)
        state.random = torch.get_rng_state()
        first = model(x).detach()
        torch.set_rng_state(state.random)
        second = model(x)
        return finish(second, y), torch.equal(first, second)

    return Program(model, step, lambda: [state.calls, state.random])


@program("effects", 4)
def teacher_is_refreshed() -> Program:
    model, teacher, calls = perceptron(), perceptron(), itertools.count()
    both = nn.ModuleList([model, teacher.requires_grad_(False)])

    def step(x: Any, y: Any) -> Any:
        if next(calls) % 5 == 4:
            teacher.load_state_dict(model.state_dict())
        logits = model(x)
        loss = F.mse_loss(logits, teacher(x)) + F.cross_entropy(logits, y)
        return backward(loss)

    return Program(both, step, lambda: repr(calls))
