"""Programs whose hooks run Python inside of the forward or the backward."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, at, finish, perceptron
from torch.nn import functional as F


@program("effects", None)
def forward_hook_that_reads_means() -> Program:
    model, means = perceptron(), []
    model[1].register_forward_hook(lambda _m, _x, result: means.append(result.mean().item()))

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Program(model, step, lambda: means)


@program("effects", CHANGE)
def hook_that_comes_and_goes() -> Program:
    model, kept, handles = perceptron(), [], []

    def halved(_module: Any, _inputs: Any, result: Any) -> Any:
        kept.append(result.detach())
        return result / 2

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    def before(call: int) -> None:
        if call == CHANGE:
            handles.append(model[0].register_forward_hook(halved))
        if call == 12:
            handles[0].remove()

    return Program(model, step, lambda: kept, before=before)


@program("effects", None)
def hooks_of_tensors_that_count() -> Program:
    model = perceptron()
    counts: Counter[str] = Counter()
    model[0].weight.register_hook(lambda gradient: counts.update(weight=gradient.numel()))
    model[2].bias.register_post_accumulate_grad_hook(lambda _p: counts.update(bias=1))

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x))
        hidden.register_hook(lambda gradient: counts.update(hidden=len(gradient)))
        return finish(model[2](hidden), y)

    return Program(model, step, lambda: counts)


@program("effects", 1)
def hook_of_a_tensor_that_scales() -> Program:
    model, calls = perceptron(), itertools.count(1)

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x))
        hidden.register_hook(lambda gradient: gradient * (1.0 / next(calls)))
        return finish(model[2](hidden), y)

    return Program(model, step)


@program("effects", None)
def backward_hook_of_a_module() -> Program:
    model, norms = perceptron(), []
    model[2].register_full_backward_hook(
        lambda _m, _inputs, outputs: norms.append(outputs[0].norm().item())
    )

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x))
        hidden.retain_grad()
        loss = finish(model[2](hidden), y)
        norms.append(hidden.grad.abs().max().item())
        return loss

    return Program(model, step, lambda: norms)


@program("effects", CHANGE)
def error_in_a_hook_of_the_backward() -> Program:
    model = perceptron()
    calls: Counter[str] = Counter()

    def stopped(gradient: Any) -> None:
        calls["hooks"] += 1
        if calls["hooks"] == CHANGE + 1:
            raise LookupError("the hook stops here")

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x))
        hidden.register_hook(stopped)
        return finish(model[2](hidden), y)

    return Program(model, step, lambda: calls, catches=(LookupError,))


@program("effects", None)
def hooks_of_saved_tensors() -> Program:
    model, counts = perceptron(), [0, 0]

    def pack(tensor: Any) -> Any:
        counts[0] += tensor.numel()
        return tensor

    def unpack(tensor: Any) -> Any:
        counts[1] += tensor.numel()
        return tensor

    def step(x: Any, y: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = F.cross_entropy(model(x), y)
        return backward(loss)

    return Program(model, step, lambda: counts)


@program("effects", CHANGE)
def saved_tensors_are_rounded_from_a_call_on() -> Program:
    model, kind = perceptron(), [torch.float32]

    def pack(tensor: Any) -> Any:
        return tensor.to(kind[0]) if tensor.is_floating_point() else tensor

    def unpack(tensor: Any) -> Any:
        return tensor.float() if tensor.is_floating_point() else tensor

    def step(x: Any, y: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            hidden = model[1](model[0](x))
        return finish(model[2](hidden), y)

    return Program(model, step, before=at(CHANGE, lambda: kind.__setitem__(0, torch.bfloat16)))
