"""Programs that use `torch.func`, write their inputs, or work on gradients from before the step."""

from __future__ import annotations

from typing import Any

import torch
from follow_harness import Program, program
from hostile import CHANGE, at, finish, perceptron
from torch import nn
from torch.nn import functional as F

func: Any = torch.func


def with_losses(model: Any, loss_of: Any, **options: Any) -> Program:
    """Returns a step that computes a loss in its own way, and keeps its numbers."""
    losses: list[float] = []

    def step(x: Any, y: Any) -> Any:
        loss = loss_of(x, y)
        losses.append(loss.item())
        return loss.detach()

    return Program(model, step, lambda: losses, **options)


def set_gradients(model: Any, gradients: Any) -> None:
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]


@program("structure", None)
def gradients_of_a_transform() -> Program:
    model = perceptron()

    def pure(weights: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(func.functional_call(model, weights, (x,)), y)

    def loss_of(x: Any, y: Any) -> Any:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        gradients, loss = func.grad_and_value(pure)(weights, x, y)
        set_gradients(model, gradients)
        return loss

    return with_losses(model, loss_of)


@program("structure", None)
def gradients_of_each_sample() -> Program:
    model = perceptron()

    def pure(weights: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(func.functional_call(model, weights, (x[None],)), y[None])

    def loss_of(x: Any, y: Any) -> Any:
        weights = {name: p.detach() for name, p in model.named_parameters()}
        rows, losses = func.vmap(func.grad_and_value(pure), in_dims=(None, 0, 0))(weights, x, y)
        norms = sum(g.flatten(1).square().sum(1) for g in rows.values()).sqrt()
        factors = (0.5 / norms).clamp(max=1)
        set_gradients(
            model, {name: torch.einsum("b,b...->...", factors, g) for name, g in rows.items()}
        )
        return losses.mean()

    return with_losses(model, loss_of)


@program("structure", None)
def a_mapped_forward() -> Program:
    model = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        return finish(func.vmap(lambda row: model(row[None])[0])(x), y)

    return with_losses(model, loss_of)


@program("structure", None)
def a_penalty_of_the_jacobian() -> Program:
    model = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        jacobians = func.vmap(func.jacrev(lambda row: model(row[None])[0]))(x)
        loss = F.cross_entropy(model(x), y) + 0.01 * jacobians.square().sum()
        loss.backward()
        return loss

    return with_losses(model, loss_of)


@program("structure", None)
def forward_derivatives() -> Program:
    model = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        logits, slopes = func.jvp(model, (x,), (torch.ones_like(x),))
        loss = F.cross_entropy(logits, y) + 0.01 * slopes.square().sum()
        loss.backward()
        return loss

    return with_losses(model, loss_of)


@program("structure", CHANGE)
def a_transform_from_a_call_on() -> Program:
    model, late = perceptron(), {"now": False}

    def loss_of(x: Any, y: Any) -> Any:
        rows = func.vmap(lambda row: model(row[None])[0]) if late["now"] else model
        return finish(rows(x), y)

    return with_losses(model, loss_of, before=at(CHANGE, lambda: late.update(now=True)))


@program("structure", None)
def an_ensemble_of_networks() -> Program:
    models = nn.ModuleList(perceptron() for _ in range(3))

    def loss_of(x: Any, y: Any) -> Any:
        weights, buffers = func.stack_module_state(list(models))
        base = models[0]

        def one(w: Any, b: Any) -> Any:
            return func.functional_call(base, (w, b), (x,))

        logits = func.vmap(one)(weights, buffers)
        loss = F.cross_entropy(logits.flatten(0, 1), y.repeat(3))
        gradients = torch.autograd.grad(loss, list(weights.values()))
        for name, g in zip(weights, gradients, strict=True):
            for model, part in zip(models, g, strict=True):
                model.get_parameter(name).grad = part.clone()
        return loss

    return with_losses(models, loss_of)


@program("effects", None)
def an_input_is_written() -> Program:
    model = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        x.mul_(0.5).add_(1)
        return finish(model(x), y)

    return with_losses(model, loss_of)


@program("effects", None)
def an_input_is_written_behind_its_use() -> Program:
    model = perceptron()
    held = torch.ones(6, 4)
    seen: list[float] = []

    def step(x: Any, y: Any, state: Any) -> Any:
        loss = finish(model(x + state), y)
        with torch.no_grad():
            state.mul_(0.5).add_(x)
        seen.append(state.sum().item())
        return loss.detach()

    def inputs(call: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(call)
        x = torch.randn(6, 4, generator=generator)
        return x, torch.randint(0, 3, (6,), generator=generator), held

    return Program(model, step, lambda: (seen, held), inputs=inputs)


@program("structure", CHANGE)
def another_branch_behind_a_written_input() -> Program:
    model, late = perceptron(), {"now": False}

    def loss_of(x: Any, y: Any) -> Any:
        x.mul_(0.5)
        logits = model(x)
        return finish(torch.sin(logits) if late["now"] else logits, y)

    return with_losses(model, loss_of, before=at(CHANGE, lambda: late.update(now=True)))


@program("structure", 1)
def gradients_are_zeroed_in_place() -> Program:
    model = perceptron(nn.Tanh(), nn.Dropout(0.2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def loss_of(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        return finish(model(x), y)

    return with_losses(model, loss_of, after=lambda _call, _result: optimizer.step())


@program("structure", 1)
def gradients_are_halved_in_place() -> Program:
    model = perceptron()

    def loss_of(x: Any, y: Any) -> Any:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)
        return finish(model(x), y)

    def after(_call: int, _result: Any) -> None:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad, alpha=0.05)

    return with_losses(model, loss_of, after=after)


@program("structure", 1)
def zeroed_gradients_are_dropped_now_and_then() -> Program:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(x: Any, y: Any) -> Any:
        optimizer.zero_grad(set_to_none=False)
        return finish(model(x), y)

    def after(call: int, _result: Any) -> None:
        optimizer.step()
        if call % 7 == 5:
            optimizer.zero_grad()

    return with_losses(model, loss_of, after=after)


@program("numbers", 1)
def batch_norm_with_a_cumulative_average() -> Program:
    model = perceptron(nn.BatchNorm1d(8, momentum=None), nn.Tanh())
    return with_losses(model, lambda x, y: finish(model(x), y))
