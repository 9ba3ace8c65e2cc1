"""Programs whose step takes another way at some calls: branches, layers, shapes, results."""

from __future__ import annotations

import itertools
import random
import types
from collections import Counter
from typing import Any

import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, at, batch, finish, perceptron
from torch import nn
from torch.nn import functional as F


def layers(count: int = 3) -> Any:
    """Returns layers of equal width and a head."""
    middle = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))
    return nn.ModuleDict({"layers": middle, "head": nn.Linear(4, 3)})


def changed_by_the_loop(before: Any) -> Program:
    """Returns a program of a perceptron whose loop calls `before(model, call)`."""
    model = perceptron(nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2))

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Program(model, step, before=lambda call: before(model, call))


@program("structure", 4)
def other_branch_at_each_fifth_call() -> Program:
    model, calls = perceptron(), itertools.count()

    def step(x: Any, y: Any) -> Any:
        if next(calls) % 5 == 4:
            return finish(model(x.flip(1)).square(), y)
        return finish(model(x), y)

    return Program(model, step, lambda: repr(calls))


@program("structure", 1)
def stochastic_depth() -> Program:
    model: Any = layers(2)
    counts: Counter[int] = Counter()

    def step(x: Any, y: Any) -> Any:
        for i, layer in enumerate(model["layers"]):
            if random.random() < 0.8:
                x = x + layer(x).tanh() / 0.8
                counts[i] += 1
        return finish(model["head"](x), y)

    return Program(model, step, lambda: counts)


@program("structure", 1)
def number_of_rounds_varies() -> Program:
    model, calls = layers(1), itertools.count()

    def step(x: Any, y: Any) -> Any:
        rounds = 1 + next(calls) % 3
        for _ in range(rounds):
            x = torch.tanh(model["layers"][0](x))
        return finish(model["head"](x), y), rounds

    return Program(model, step)


@program("structure", CHANGE)
def activation_is_replaced() -> Program:
    return changed_by_the_loop(
        lambda model, call: call == CHANGE and model.__setitem__(2, nn.ReLU())
    )


@program("structure", CHANGE)
def head_is_replaced() -> Program:
    return changed_by_the_loop(
        lambda model, call: call == CHANGE and model.__setitem__(4, perceptron()[2])
    )


@program("structure", CHANGE)
def layer_is_frozen_and_thawed() -> Program:
    return changed_by_the_loop(lambda model, call: model[0].requires_grad_(not CHANGE <= call < 13))


@program("structure", 6)
def layers_are_switched_to_evaluation() -> Program:
    return changed_by_the_loop(lambda model, call: model.train(call % 6 != 0))


@program("structure", CHANGE)
def weights_become_shared() -> Program:
    model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)])

    def step(x: Any, y: Any) -> Any:
        return finish(model[2](torch.tanh(model[1](torch.tanh(model[0](x))))), y)

    def share() -> None:
        model[1].weight = model[0].weight

    return Program(model, step, before=at(CHANGE, share))


@program("structure", CHANGE)
def forward_of_a_layer_is_patched() -> Program:
    def doubled(self: Any, x: Any) -> Any:
        return 2 * F.linear(x, self.weight)

    def before(model: Any, call: int) -> None:
        if call == CHANGE:
            model[0].forward = types.MethodType(doubled, model[0])

    return changed_by_the_loop(before)


@program("structure", CHANGE)
def network_grows_inside_the_step() -> Program:
    model, calls = layers(1), itertools.count()

    def step(x: Any, y: Any) -> Any:
        if next(calls) in (CHANGE, 13):
            model["layers"].append(nn.Linear(4, 4))
        for layer in model["layers"]:
            x = x + layer(x).relu()
        return finish(model["head"](x), y)

    return Program(model, step, lambda: len(model["layers"]))


@program("structure", 1)
def losses_in_turns() -> Program:
    model, calls = perceptron(), itertools.count()
    losses: tuple[Any, ...] = (
        F.cross_entropy,
        lambda logits, y: F.mse_loss(logits, F.one_hot(y, 3).float()),
        lambda logits, y: F.multi_margin_loss(logits, y, margin=0.5),
    )

    def step(x: Any, y: Any) -> Any:
        loss = losses[next(calls) % 3](model(x), y)
        return backward(loss)

    return Program(model, step)


@program("structure", 9)
def batch_is_smaller_at_a_call() -> Program:
    model = perceptron()

    def inputs(call: int) -> tuple[Any, ...]:
        rows = 6 if call % 10 != 9 else 2
        return tuple(part[:rows] for part in batch(call))

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Program(model, step, inputs=inputs)


@program("structure", CHANGE)
def inputs_have_another_type() -> Program:
    model = perceptron()

    def inputs(call: int) -> tuple[Any, ...]:
        x, y = batch(call)
        kinds = {CHANGE: torch.float64, 12: torch.int32, 15: torch.float16}
        return (x * 4).to(kinds.get(call, torch.float32)), y

    def step(x: Any, y: Any) -> Any:
        logits = model(x.float() / 4)
        return finish(logits, y), str(x.dtype), logits.to(x.dtype)

    return Program(model, step, inputs=inputs)


@program("structure", 4)
def second_head_at_each_fifth_call() -> Program:
    body, heads, calls = nn.Linear(4, 8), (nn.Linear(8, 3), nn.Linear(8, 1)), itertools.count(1)
    model = nn.ModuleList([body, *heads])

    def step(x: Any, y: Any) -> Any:
        hidden = body(x).tanh()
        results = {"loss": F.cross_entropy(heads[0](hidden), y)}
        if next(calls) % 5 == 0:
            results["value"] = heads[1](hidden).mean()
            results["total"] = results["loss"] + results["value"].square()
        backward(list(results.values())[-1])
        return results

    return Program(model, step)


@program("structure", CHANGE)
def early_exit() -> Program:
    # The rows of one call are so large that the first layer is sure.
    model, depths = layers(), []

    def inputs(call: int) -> tuple[Any, ...]:
        x, y = batch(call)
        return x * (1000 if call in (CHANGE, 11) else 0.1), y

    def step(x: Any, y: Any) -> Any:
        depths.append(0)
        for layer in model["layers"]:
            x = layer(x)
            logits = model["head"](x)
            depths[-1] += 1
            if logits.softmax(1).max(1).values.mean() > 0.95:
                break
        return finish(logits, y)

    return Program(model, step, lambda: depths, inputs)


@program("structure", 1)
def order_of_layers_is_shuffled() -> Program:
    model, order = layers(), [0, 1, 2]

    def step(x: Any, y: Any) -> Any:
        random.shuffle(order)
        for i in order:
            x = model["layers"][i](x).tanh() if i != 2 else model["layers"][i](x).relu()
        return finish(model["head"](x), y), tuple(order)

    return Program(model, step, lambda: order)


@program("structure", None)
def results_of_varying_structure() -> Program:
    model, calls = perceptron(), itertools.count()

    def step(x: Any, y: Any) -> Any:
        loss, call = finish(model(x), y), next(calls)
        results: list[Any] = [loss, (loss, call), {"loss": [loss], "call": str(call)}, None]
        return results[call % 4]

    return Program(model, step, lambda: repr(calls))


@program("structure", 1)
def experts_by_argmax() -> Program:
    experts, gate = [perceptron() for _ in range(3)], nn.Linear(4, 3)
    model = nn.ModuleList([gate, *experts])
    loads: Counter[int] = Counter()

    def step(x: Any, y: Any) -> Any:
        shares = gate(x).softmax(1)
        chosen, parts = shares.argmax(1), []
        for i, expert in enumerate(experts):
            rows = (chosen == i).nonzero().squeeze(1)
            loads[i] += len(rows)
            if len(rows) > 0:
                logits = expert(x[rows]) * shares[rows, i, None]
                parts.append(F.cross_entropy(logits, y[rows], reduction="sum"))
        loss = torch.stack(parts).sum() / len(x)
        return backward(loss), len(parts)

    return Program(model, step, lambda: loads)


@program("structure", 1)
def sequences_of_varying_length() -> Program:
    model = nn.ModuleDict({"cell": nn.LSTMCell(4, 5), "head": nn.Linear(5, 3)})

    def inputs(call: int) -> tuple[Any, ...]:
        x, y = batch(call)
        return x.repeat(2 + call * 7 % 5, 1, 1), y

    def step(xs: Any, y: Any) -> Any:
        state: Any = None
        for x in xs:
            state = model["cell"](x, state)
        return finish(model["head"](state[0]), y)

    return Program(model, step, inputs=inputs)


@program("structure", 1)
def trees_of_varying_form() -> Program:
    model = nn.ModuleDict({"join": nn.Linear(8, 4), "head": nn.Linear(4, 3)})
    forms = (((0, 1), (2, 3)), (0, (1, (2, 3))), ((0, (1, 2)), 3), (0, 1))

    def inputs(call: int) -> tuple[Any, ...]:
        return forms[call % len(forms)], *batch(call)

    def joined(form: Any, x: Any) -> Any:
        if isinstance(form, int):
            return x[form]
        return model["join"](torch.cat([joined(part, x) for part in form])).tanh()

    def step(form: Any, x: Any, y: Any) -> Any:
        return finish(model["head"](joined(form, x)), y[0])

    return Program(model, step, inputs=inputs)


@program("structure", 3)
def batch_with_a_key_that_may_lack() -> Program:
    model = perceptron()

    def inputs(call: int) -> tuple[Any, ...]:
        x, y = batch(call)
        weights = {"weights": torch.arange(6) / 6.0} if call % 4 == 3 else {}
        return ({"x": x, "y": y} | weights,)

    def step(given: Any) -> Any:
        losses = F.cross_entropy(model(given["x"]), given["y"], reduction="none")
        loss = (losses * given["weights"]).sum() if "weights" in given else losses.mean()
        return backward(loss), sorted(given)

    return Program(model, step, inputs=inputs)


@program("structure", 4)
def validation_inside_the_step() -> Program:
    model, history = perceptron(nn.BatchNorm1d(8), nn.Dropout(0.5)), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        history.append(loss.item())
        if len(history) % 5 == 0:
            model.eval()
            with torch.no_grad():
                history[-1] = [history[-1], F.cross_entropy(model(x), y).item()]
            model.train()
        return loss

    return Program(model, step, lambda: history)


@program("structure", CHANGE)
def parts_of_a_batch() -> Program:
    model, parts = perceptron(), [1]

    def step(x: Any, y: Any) -> Any:
        total = 0.0
        for rows in range(parts[0]):
            piece = slice(rows, None, parts[0])
            loss = F.cross_entropy(model(x[piece]), y[piece], reduction="sum") / len(x)
            backward(loss)
            total += loss.item()
        return total

    return Program(model, step, before=at(CHANGE, lambda: parts.__setitem__(0, 3)))


@program("structure", 8)
def gradients_of_some_parameters() -> Program:
    model, calls = perceptron(), itertools.count()

    def step(x: Any, y: Any) -> Any:
        loss, late = F.cross_entropy(model(x), y), next(calls) % 9 == 8
        chosen = list(model.parameters())[2 * late :]
        for p, gradient in zip(chosen, torch.autograd.grad(loss, chosen), strict=True):
            p.grad = gradient
        return loss, [p.grad is None for p in model.parameters()]

    return Program(model, step)


@program("structure", CHANGE)
def model_becomes_double() -> Program:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        return finish(model(x.to(model[0].weight.dtype)), y)

    def before(call: int) -> None:
        model.to(torch.float64 if CHANGE <= call < 13 else torch.float32)

    return Program(model, step, before=before)


@program("structure", 13)
def weights_get_other_storages() -> Program:
    model, losses = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        losses.append(loss.item())
        return loss

    def before(call: int) -> None:
        if call == CHANGE:
            for p in model.parameters():
                p.data = p.data.clone()
        if call == 13:
            weights = {name: tensor / 2 for name, tensor in model.state_dict().items()}
            model.load_state_dict(weights, assign=True)

    return Program(model, step, lambda: losses, before=before)


@program("structure", 1)
def gradients_are_zeroed_by_the_loop() -> Program:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y), [p.grad.norm() for p in model.parameters()]

    def after(call: int, _result: Any) -> None:
        if call % 3 != 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=call % 2 == 1)

    return Program(model, step, after=after)
