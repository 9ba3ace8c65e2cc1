"""Programs that use tools of PyTorch and Python around a part of the step."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.nn.utils.prune
from follow_harness import Program, program
from hostile import CHANGE, at, finish, perceptron
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode


@program("structure", CHANGE)
def weights_are_pruned() -> Program:
    model = perceptron()
    pruned: Any = nn.utils.prune.l1_unstructured

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    def change() -> None:
        pruned(model[0], "weight", amount=0.5)

    return Program(model, step, before=at(CHANGE, change))


@program("structure", CHANGE)
def autocast_from_a_call_on() -> Program:
    model, options = perceptron(), {"enabled": False}

    def step(x: Any, y: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16, **options):
            logits = model(x)
        return finish(logits.float(), y), logits

    return Program(model, step, before=at(CHANGE, lambda: options.update(enabled=True)))


@program("structure", CHANGE)
def checkpoints_from_a_call_on() -> Program:
    model = perceptron(nn.Tanh(), nn.Dropout(0.5))
    calls: Counter[str] = Counter()

    def body(x: Any) -> Any:
        calls["body"] += 1
        return model[:3](x)

    def step(x: Any, y: Any) -> Any:
        calls["steps"] += 1
        late = calls["steps"] > CHANGE
        hidden = checkpoint(body, x, use_reentrant=False) if late else body(x)
        return finish(model[3](hidden), y)

    return Program(model, step, lambda: calls)


@program("structure", 1)
def attack_of_varying_strength() -> Program:
    model, calls = perceptron(), itertools.count()

    def step(x: Any, y: Any) -> Any:
        attacked = x
        for _ in range(next(calls) % 4):
            attacked = attacked.detach().requires_grad_()
            (slope,) = torch.autograd.grad(F.cross_entropy(model(attacked), y), attacked)
            attacked = attacked + 0.05 * slope.sign()
        return finish(model(attacked.detach()), y), (attacked - x).abs().max().item()

    return Program(model, step)


@program("structure", 6)
def formula_in_a_text() -> Program:
    model, formulas = perceptron(), ["x * 2 + 1", "x.abs()", "x[:, [1, 0, 2]]"]

    def step(x: Any, y: Any) -> Any:
        return finish(eval(formulas[0], {}, {"x": model(x)}), y)

    def before(call: int) -> None:
        if call % 6 == 0:
            formulas.append(formulas.pop(0))

    return Program(model, step, lambda: formulas, before=before)


@program("effects", None)
def metrics_of_another_thread() -> Program:
    model, numbers, pool = perceptron(), [], ThreadPoolExecutor(1)

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        later = pool.submit(lambda: numbers.append((logits.detach().max() * 2).item()))
        loss = finish(logits, y)
        later.result()
        return loss

    return Program(model, step, lambda: numbers)


@program("numbers", 1)
def forward_in_another_thread() -> Program:
    model, calls, pool = perceptron(), itertools.count(1), ThreadPoolExecutor(1)

    def step(x: Any, y: Any) -> Any:
        return finish(pool.submit(lambda: model(x) / next(calls)).result(), y)

    return Program(model, step)


@program("numbers", CHANGE)
def coroutine_in_the_step() -> Program:
    model, scale = perceptron(), [1.0]

    async def scaled(logits: Any) -> Any:
        await asyncio.sleep(0)
        return logits * scale[0]

    def step(x: Any, y: Any) -> Any:
        return finish(asyncio.run(scaled(model(x))), y)

    return Program(model, step, before=at(CHANGE, lambda: scale.__setitem__(0, 0.5)))


@program("effects", None)
def operators_are_counted() -> Program:
    model, counts = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        with FlopCounterMode(display=False) as counter:
            loss = finish(model(x), y)
        counts.append(counter.get_total_flops())
        return loss

    return Program(model, step, lambda: counts)


@program("effects", None)
def functions_are_listed() -> Program:
    class Listed(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            names.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    model = perceptron()
    names: list[str] = []

    def step(x: Any, y: Any) -> Any:
        with Listed():
            return finish(model(x), y)

    return Program(model, step, lambda: names)


@program("structure", CHANGE)
def gradients_by_rows_from_a_call_on() -> Program:
    model, options = perceptron(), {"by_rows": False, "calls": 0}

    def loss_of(weights: Any, x: Any, y: Any) -> Any:
        logits: Any = torch.func.functional_call(model, weights, (x,))
        return F.cross_entropy(logits, y)

    def step(x: Any, y: Any) -> Any:
        options["calls"] += 1
        weights = {name: p.detach() for name, p in model.named_parameters()}
        if not options["by_rows"]:
            gradients = torch.func.grad(loss_of)(weights, x, y)
        else:
            rows = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(weights, x, y)
            gradients = {name: row.clamp(-0.1, 0.1).sum(0) for name, row in rows.items()}
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        return gradients

    change = at(CHANGE, lambda: options.update(by_rows=True))
    return Program(model, step, lambda: options, before=change)
