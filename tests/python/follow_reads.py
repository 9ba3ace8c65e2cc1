"""Programs whose step reads numbers out of tensors, and keeps them or acts on them."""

from __future__ import annotations

import io
import math
import operator
from typing import Any

import numpy as np
import torch
from follow_harness import Program, backward, program
from hostile import batch, finish, perceptron
from torch import nn
from torch.nn import functional as F

LOUD = 9  # The call with inputs that stand out.


def loud(factor: float) -> Any:
    """Returns inputs that are multiplied by a factor at one call."""

    def inputs(call: int) -> tuple[Any, ...]:
        x, y = batch(call)
        return x * (factor if call == LOUD else 1.0), y

    return inputs


@program("reads", None)
def losses_in_a_list() -> Program:
    model, losses = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        losses.append(loss.item())
        return loss

    return Program(model, step, lambda: losses)


@program("reads", None)
def running_mean_of_losses() -> Program:
    model, mean = perceptron(), 0.0

    def step(x: Any, y: Any) -> Any:
        nonlocal mean
        mean = 0.9 * mean + 0.1 * float(finish(model(x), y))
        return {"mean": mean}

    return Program(model, step, lambda: mean)


@program("reads", None)
def counters_of_accuracy() -> Program:
    model, counts = perceptron(), {"right": 0, "rows": 0, "sure": 0, "any": False}

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        counts["right"] += int((logits.argmax(1) == y).sum())
        counts["rows"] += len(y)
        counts["sure"] += bool(logits.softmax(1).max() > 0.6)
        counts["any"] = bool((logits > 0).all())
        return finish(logits, y), counts["right"] / counts["rows"]

    return Program(model, step, lambda: counts)


@program("reads", None)
def predictions_as_a_list() -> Program:
    model, predictions = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        predictions.append(logits.argmax(1).tolist())
        return finish(logits, y)

    return Program(model, step, lambda: predictions)


@program("reads", None)
def two_hundred_numbers_as_a_list() -> Program:
    model, kept = perceptron(), {}

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x.repeat(5, 1)))
        kept["hidden"] = hidden.tolist()
        return finish(model[2](hidden), y.repeat(5)), sum(map(sum, kept["hidden"]))

    return Program(model, step, lambda: kept)


@program("reads", 1)
def logits_as_an_array() -> Program:
    model, arrays = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        arrays.append(logits.detach().numpy().copy())
        return finish(logits / (1.0 + float(np.abs(arrays[-1]).max())), y)

    return Program(model, step, lambda: arrays)


@program("reads", None)
def norms_of_weights_by_numpy() -> Program:
    model, norms = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        norms.append([float(np.linalg.norm(np.asarray(p.detach()))) for p in model.parameters()])
        norms.append([float(np.asarray(p.grad).sum()) for p in model.parameters()])
        return loss

    return Program(model, step, lambda: norms)


@program("reads", None)
def printed_tensors() -> Program:
    model, page = perceptron(), io.StringIO()

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        loss = finish(logits, y)
        print("loss", loss, "first row", logits[0].detach(), file=page)
        print(repr(model[2].bias.grad), model[2].bias, file=page)
        return loss

    return Program(model, step, page.getvalue)


@program("reads", None)
def formatted_numbers() -> Program:
    model, lines = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        lines.append(f"{loss:.6f} {loss.item():e} {len(y):>4d}")
        lines.append("{:8.4f} {}".format(*model[2].weight[0, :2].detach()))
        return loss, lines[-2]

    return Program(model, step, lambda: lines)


@program("reads", None)
def mathematics_of_tensors() -> Program:
    model, kept = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        kept.append((math.exp(loss), math.isfinite(loss), round(loss.item(), 3), int(loss * 8) % 3))
        return kept[-1][0]

    return Program(model, step, lambda: kept)


@program("reads", None)
def names_of_labels() -> Program:
    model, names, seen = perceptron(), ["ant", "bee", "cat"], []

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        best = logits.argmax(1)
        seen.append([names[best[0]], names[operator.index(y[1])], "cat"[best[2] :], 2 in y])
        return finish(logits, y), seen[-1]

    return Program(model, step, lambda: seen)


@program("reads", LOUD)
def update_is_skipped_for_a_loss_that_is_no_number() -> Program:
    model, skipped = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        if torch.isnan(loss):
            skipped.append(loss.item())
            return None
        return backward(loss)

    return Program(model, step, lambda: skipped, loud(float("nan")))


@program("reads", LOUD)
def update_is_skipped_for_a_large_loss() -> Program:
    model, average = perceptron(nn.ReLU()), [1.5]

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        if loss.item() > 3 * average[-1]:
            return {"skipped": loss.item()}
        average.append(0.8 * average[-1] + 0.2 * loss.item())
        backward(loss)
        return {"loss": loss}

    return Program(model, step, lambda: average, loud(200))


@program("reads", LOUD)
def other_loss_above_three() -> Program:
    model = perceptron(nn.ReLU())

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        if loss > 3:
            loss = (1 + loss).log()
        return backward(loss)

    return Program(model, step, inputs=loud(200))


@program("reads", 1)
def gradients_are_divided_by_their_norm() -> Program:
    model, norms = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        norms.append(torch.stack([p.grad.norm() for p in model.parameters()]).norm().item())
        for p in model.parameters():
            p.grad.mul_(1.0 / norms[-1])
        return loss

    return Program(model, step, lambda: norms)


@program("reads", LOUD)
def loss_scale_that_halves() -> Program:
    model, scale = perceptron(nn.ReLU()), 2.0**14

    def step(x: Any, y: Any) -> Any:
        nonlocal scale
        loss = F.cross_entropy(model(x), y)
        backward(loss * scale)
        if all(bool(p.grad.isfinite().all()) for p in model.parameters()):
            for p in model.parameters():
                p.grad.div_(scale)
        else:
            scale /= 2
            model.zero_grad()
        return loss

    return Program(model, step, lambda: scale, loud(1e36))


@program("reads", 1)
def column_of_the_best_class() -> Program:
    # The bias is large for another class at each call, so that no rounding decides.
    model, columns = perceptron(), []

    def inputs(call: int) -> tuple[Any, ...]:
        return *batch(call), F.one_hot(torch.tensor(call % 3), 3) * 10.0

    def step(x: Any, y: Any, bias: Any) -> Any:
        logits = model(x)
        columns.append((logits + bias).mean(0).argmax().item())
        return finish(logits - logits[:, columns[-1]].mean(), y)

    return Program(model, step, lambda: columns, inputs)


@program("reads", LOUD)
def batch_whose_halves_are_equal() -> Program:
    model = perceptron()

    def inputs(call: int) -> tuple[Any, ...]:
        x, y = batch(call)
        return (x[:3].repeat(2, 1) if call == LOUD else x), y

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * (0.5 if torch.equal(x[:3], x[3:]) else 1.0), y)

    return Program(model, step, inputs=inputs)


@program("reads", 1)
def rows_by_nonzero() -> Program:
    model, counts = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        rows = (x[:, 0] > -0.5).nonzero().squeeze(1)
        counts.append(len(rows))
        return finish(model(x[rows]), y[rows])

    return Program(model, step, lambda: counts)


@program("reads", 1)
def masked_select_of_the_hidden_layer() -> Program:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        chosen = torch.masked_select(model(x), x[:, :3] > 0)
        loss = chosen.square().sum() + F.cross_entropy(model(x), y)
        return backward(loss), chosen.numel()

    return Program(model, step)


@program("reads", 1)
def boolean_index() -> Program:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        keep = y != 2
        x[x > 1.5] = 1.5
        return finish(model(x[keep]), y[keep]) if keep.any() else None

    return Program(model, step)


@program("reads", 1)
def longest_sequence_cuts_the_batch() -> Program:
    model = nn.ModuleDict({"embed": nn.Embedding(11, 4), "head": nn.Linear(4, 3)})

    def inputs(call: int) -> tuple[Any, ...]:
        generator = torch.Generator().manual_seed(call)
        lengths = torch.randint(1, 4 + call % 5, (6,), generator=generator)
        return torch.randint(0, 11, (6, 9), generator=generator), lengths, batch(call)[1]

    def step(tokens: Any, lengths: Any, y: Any) -> Any:
        longest = lengths.max().item()
        inside = torch.arange(longest) < lengths[:, None]
        hidden = model["embed"](tokens[:, :longest]) * inside[:, :, None]
        return finish(model["head"](hidden.sum(1) / lengths[:, None]), y), longest

    return Program(model, step, inputs=inputs)


@program("reads", 1)
def hardest_rows_are_trained_again() -> Program:
    model, hardest = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        losses = F.cross_entropy(model(x), y, reduction="none")
        rows = losses.topk(2).indices.tolist()
        hardest.append(rows)
        loss = losses.mean() + F.cross_entropy(model(x[rows]), y[rows])
        return backward(loss)

    return Program(model, step, lambda: hardest)


@program("reads", 1)
def python_sorts_tensors() -> Program:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        order = sorted(range(len(y)), key=x[:, 0].unbind().__getitem__)
        losses = F.cross_entropy(model(x), y, reduction="none")
        loss = sum(losses[row] * (1.0 + place) for place, row in enumerate(order))
        return backward(loss), max(losses).detach()

    return Program(model, step)


@program("reads", LOUD)
def scale_shrinks_while_the_loss_is_large() -> Program:
    model, rounds = perceptron(nn.ReLU()), []

    def step(x: Any, y: Any) -> Any:
        loss, scale = F.cross_entropy(model(x), y), 1.0
        while loss * scale > 4:
            scale *= 0.5
        rounds.append(scale)
        backward(loss * scale)
        return loss

    return Program(model, step, lambda: rounds, loud(1000))


@program("reads", 1)
def number_of_classes_in_the_batch() -> Program:
    model, counts = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        classes, rows = y.unique(return_counts=True)
        counts.append(rows.numpy().tolist())
        return finish(model(x) * len(classes), y)

    return Program(model, step, lambda: counts)
