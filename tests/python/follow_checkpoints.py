"""Programs with `torch.utils.checkpoint` inside the step, whose parts run again in the backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, at, finish, perceptron
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


def two_parts(*middle: Callable[[], Any]) -> Any:
    """Returns a network of two equal parts and a head."""
    layers = (nn.Sequential(nn.Linear(4, 4), *(m() for m in middle)) for _ in range(2))
    return nn.Sequential(*layers, nn.Linear(4, 3))


def checkpointed(model: Any, *, reentrant: bool, body: Any = None, **options: Any) -> Program:
    """Returns a step that runs the parts of the model as checkpoints, and keeps its losses."""
    losses: list[float] = []
    body = body or (lambda part, x: part(x))

    def step(x: Any, y: Any) -> Any:
        hidden = x.clone().requires_grad_(reentrant)
        for part in model[:-1]:
            hidden = checkpoint(body, part, hidden, use_reentrant=reentrant, **options)
        loss = finish(model[-1](hidden), y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses)


@program("effects", None)
def checkpoints_that_compute() -> Program:
    return checkpointed(two_parts(nn.Tanh, nn.GELU), reentrant=False)


@program("effects", None)
def reentrant_checkpoints_that_compute() -> Program:
    return checkpointed(two_parts(nn.Tanh, nn.GELU), reentrant=True)


@program("effects", None)
def dropout_in_checkpoints() -> Program:
    return checkpointed(two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), reentrant=False)


@program("effects", None)
def dropout_in_reentrant_checkpoints() -> Program:
    return checkpointed(two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), reentrant=True)


@program("effects", None)
def dropout_that_draws_anew_in_checkpoints() -> Program:
    model = two_parts(lambda: nn.Dropout(0.3), nn.Tanh)
    return checkpointed(model, reentrant=False, preserve_rng_state=False)


@program("effects", None)
def batch_norm_in_checkpoints() -> Program:
    return checkpointed(two_parts(lambda: nn.BatchNorm1d(4), nn.Tanh), reentrant=False)


@program("effects", None)
def batch_norm_in_reentrant_checkpoints() -> Program:
    return checkpointed(two_parts(lambda: nn.BatchNorm1d(4), nn.Tanh), reentrant=True)


@program("effects", None)
def batch_norm_and_dropout_in_checkpoints() -> Program:
    middle = (lambda: nn.BatchNorm1d(4), lambda: nn.Dropout(0.3), nn.Tanh)
    return checkpointed(two_parts(*middle), reentrant=False)


@program("effects", None)
def operations_in_place_in_checkpoints() -> Program:
    middle = (lambda: nn.ReLU(inplace=True), lambda: nn.Dropout(0.3, inplace=True))
    return checkpointed(two_parts(*middle), reentrant=False)


@program("effects", None)
def counters_in_checkpoints() -> Program:
    calls: Counter[str] = Counter()

    def body(part: Any, x: Any) -> Any:
        calls["runs"] += 1
        return part(x)

    made = checkpointed(two_parts(nn.Tanh), reentrant=False, body=body)
    return Program(made.model, made.step, lambda: calls)


@program("reads", None)
def numbers_read_in_checkpoints() -> Program:
    read: list[float] = []

    def body(part: Any, x: Any) -> Any:
        hidden = part[0](x)
        read.append(hidden.sum().item())
        return part[1:](hidden)

    made = checkpointed(two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), reentrant=False, body=body)
    return Program(made.model, made.step, lambda: read)


@program("numbers", 1)
def factors_in_checkpoints() -> Program:
    calls: Counter[str] = Counter()

    def body(part: Any, x: Any) -> Any:
        return torch.add(x * (1 + calls["steps"] / 10), part(x), alpha=1 / (1 + calls["steps"]))

    made = checkpointed(two_parts(nn.Tanh), reentrant=False, body=body)

    def before(_call: int) -> None:
        calls["steps"] += 1

    return Program(made.model, made.step, made.kept, before=before)


@program("numbers", CHANGE)
def dropout_rates_in_checkpoints() -> Program:
    made = checkpointed(two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), reentrant=False)
    rate = {"p": 0.6}

    def change() -> None:
        for part in made.model[:-1]:
            part[2].p = rate["p"]

    return Program(made.model, made.step, made.kept, before=at(CHANGE, change))


@program("numbers", CHANGE)
def factor_that_is_another_when_run_again() -> Program:
    runs: Counter[str] = Counter()
    late = {"now": False}

    def body(part: Any, x: Any) -> Any:
        runs["all"] += 1
        again = late["now"] and runs["all"] % 4 in (3, 0)
        return part(x) * (0.5 if again else 0.25 if late["now"] else 1.0)

    made = checkpointed(two_parts(nn.Tanh), reentrant=False, body=body)
    return Program(
        made.model, made.step, made.kept, before=at(CHANGE, lambda: late.update(now=True))
    )


@program("structure", CHANGE)
def something_else_when_run_again() -> Program:
    runs: Counter[str] = Counter()
    late = {"now": False}

    def body(part: Any, x: Any) -> Any:
        runs["all"] += 1
        hidden = part[1](part[0](x))
        if late["now"] and runs["all"] % 4 in (3, 0):
            with torch.no_grad():
                hidden.mul_(0.5)
        return part[2](hidden)

    made = checkpointed(two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), reentrant=False, body=body)
    return Program(
        made.model, made.step, made.kept, before=at(CHANGE, lambda: late.update(now=True))
    )


@program("structure", CHANGE)
def another_branch_in_checkpoints() -> Program:
    late = {"now": False}

    def body(part: Any, x: Any) -> Any:
        hidden = part(x)
        return torch.sin(hidden) if late["now"] else hidden

    made = checkpointed(two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), reentrant=True, body=body)
    return Program(
        made.model, made.step, made.kept, before=at(CHANGE, lambda: late.update(now=True))
    )


@program("structure", CHANGE)
def checkpoints_end_at_a_call() -> Program:
    model, losses, on = two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), [], {"now": True}

    def step(x: Any, y: Any) -> Any:
        hidden = x
        for part in model[:-1]:
            hidden = checkpoint(part, hidden, use_reentrant=False) if on["now"] else part(hidden)
        loss = finish(model[-1](hidden), y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses, before=at(CHANGE, lambda: on.update(now=False)))


@program("effects", None)
def nested_checkpoints() -> Program:
    def body(part: Any, x: Any) -> Any:
        hidden = checkpoint(part[0], x, use_reentrant=False)
        return checkpoint(part[1:], hidden, use_reentrant=False)

    middle = (nn.Tanh, lambda: nn.Dropout(0.3))
    return checkpointed(two_parts(*middle), reentrant=False, body=body)


@program("effects", None)
def checkpoints_of_a_sequence() -> Program:
    model, losses = two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), []
    in_sequence: Any = checkpoint_sequential

    def step(x: Any, y: Any) -> Any:
        hidden = in_sequence(model[:-1], 2, x, use_reentrant=False)
        loss = finish(model[-1](hidden), y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses)


@program("effects", None)
def a_part_that_is_two_checkpoints() -> Program:
    model, losses = two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), []

    def step(x: Any, y: Any) -> Any:
        hidden = x
        for part in (model[0], model[0], model[1]):
            hidden = checkpoint(part, hidden, use_reentrant=False)
        loss = finish(model[-1](hidden), y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses)


@program("effects", None)
def checkpoints_under_autocast() -> Program:
    model, losses = two_parts(nn.Tanh, lambda: nn.Dropout(0.3)), []

    def step(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            hidden = x
            for part in model[:-1]:
                hidden = checkpoint(part, hidden, use_reentrant=False)
            logits = model[-1](hidden)
        loss = finish(logits.float(), y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses)


@program("structure", 1)
def checkpoints_and_the_optimizer() -> Program:
    model = two_parts(nn.Tanh, lambda: nn.Dropout(0.3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses: list[float] = []

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        hidden = x
        for part in model[:-1]:
            hidden = checkpoint(part, hidden, use_reentrant=False)
        loss = backward(F.cross_entropy(model[-1](hidden), y))
        optimizer.step()
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses, after=lambda _call, _result: None)


@program("effects", None)
def hidden_values_of_checkpoints_are_kept() -> Program:
    model = two_parts(nn.Tanh, lambda: nn.Dropout(0.3))
    kept: list[Any] = []

    def step(x: Any, y: Any) -> Any:
        kept.clear()
        hidden = x
        for part in model[:-1]:
            hidden = checkpoint(part, hidden, use_reentrant=False)
            kept.append(hidden.detach())
        return finish(model[-1](hidden), y).detach()

    return Program(model, step, lambda: kept)


@program("effects", None)
def a_small_network_with_checkpoints() -> Program:
    model, losses = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(checkpoint(model, x, use_reentrant=False), y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses)
