"""Programs whose losses, layers and updates have numbers that change from call to call."""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, at, finish, perceptron
from torch import nn
from torch.nn import functional as F


@program("numbers", 1)
def temperature_schedule() -> Program:
    model, temperature = perceptron(), 2.0

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) / temperature, y)

    def before(call: int) -> None:
        nonlocal temperature
        temperature = max(0.5, 2.0 - 0.125 * call)

    return Program(model, step, before=before)


@program("numbers", CHANGE)
def probability_of_dropout() -> Program:
    model = perceptron(nn.Tanh(), nn.Dropout(0.5))

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Program(model, step, before=at(CHANGE, lambda: setattr(model[2], "p", 0.1)))


@program("numbers", CHANGE)
def settings_of_modules() -> Program:
    model = perceptron(nn.LayerNorm(8), nn.LeakyReLU(0.1), nn.BatchNorm1d(8))

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    def before(call: int) -> None:
        model[2].negative_slope = 0.1 + 0.2 * (call >= CHANGE)
        model[1].eps = 1e-5 * (1 + call // 9)
        model[3].momentum = 0.1 if call < 11 else None

    return Program(model, step, before=before)


@program("numbers", 1)
def rate_inside_the_step() -> Program:
    model, state = perceptron(), {"calls": 0}

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        state["calls"] += 1
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.2 / state["calls"] * p.grad
        model.zero_grad()
        return loss

    return Program(model, step, lambda: state)


@program("numbers", 1)
def annealed_divergence() -> Program:
    model, calls = nn.ModuleDict({"mean": nn.Linear(4, 6), "back": nn.Linear(3, 4)}), 0

    def step(x: Any, _y: Any) -> Any:
        nonlocal calls
        calls += 1
        mean, spread = model["mean"](x).chunk(2, dim=1)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = (mean.square() + spread.exp() - 1 - spread).mean() / 2
        loss = F.mse_loss(model["back"](code), x) + min(1.0, calls / 10) * divergence
        return backward(loss), divergence

    return Program(model, step, lambda: calls)


@program("numbers", 1)
def weights_of_classes_from_counts() -> Program:
    model, counts = perceptron(), [1, 1, 1]

    def step(x: Any, y: Any) -> Any:
        for label in y.tolist():
            counts[label] += 1
        loss = F.cross_entropy(model(x), y, weight=torch.tensor([6.0 / n for n in counts]))
        return backward(loss)

    return Program(model, step, lambda: counts)


@program("numbers", 1)
def mixup_by_numpy() -> Program:
    model, shares = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        share, order = np.random.beta(0.4, 0.4), np.random.permutation(len(x))
        shares.append(share)
        logits = model(share * x + (1 - share) * x[order])
        loss = share * F.cross_entropy(logits, y) + (1 - share) * F.cross_entropy(logits, y[order])
        return backward(loss)

    return Program(model, step, lambda: shares)


@program("numbers", CHANGE)
def weight_of_a_gradient_penalty() -> Program:
    model, weight = perceptron(), [0.0]

    def step(x: Any, y: Any) -> Any:
        x = x.clone().requires_grad_()
        loss = F.cross_entropy(model(x), y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        backward(loss + weight[0] * slope.square().sum())
        return loss

    return Program(model, step, before=at(CHANGE, lambda: weight.__setitem__(0, 0.5)))


@program("numbers", CHANGE)
def options_of_the_loss() -> Program:
    model = perceptron()
    options: dict[str, Any] = {"label_smoothing": 0.0}

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y, **options)
        return backward(loss)

    def change() -> None:
        options.update(label_smoothing=0.1, reduction="sum")

    return Program(model, step, before=at(CHANGE, change))


@program("numbers", 1)
def seed_of_a_generator_of_the_step() -> Program:
    model, seeds = perceptron(), itertools.count(5)

    def step(x: Any, y: Any) -> Any:
        generator = torch.Generator().manual_seed(next(seeds))
        return finish(model(x + torch.randn(x.shape, generator=generator)), y)

    return Program(model, step)


@program("numbers", CHANGE)
def number_in_a_backward_of_the_user() -> Program:
    model, state = perceptron(), types.SimpleNamespace(scale=1.0, backwards=0)

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: Any) -> Any:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: Any) -> Any:
            state.backwards += 1
            return gradient * state.scale

    def step(x: Any, y: Any) -> Any:
        apply: Any = Scaled.apply
        return finish(model[2](apply(model[1](model[0](x)))), y)

    change = at(CHANGE, lambda: setattr(state, "scale", -0.5))
    return Program(model, step, lambda: vars(state), before=change)
