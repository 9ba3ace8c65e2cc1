"""Programs whose step keeps things in Python: metrics, outputs, hooks, iterators, errors."""

from __future__ import annotations

import contextlib
import copy
import io
import itertools
import logging
import types
from collections import Counter, defaultdict, deque
from typing import Any

import torch
from follow_harness import Program, backward, program
from hostile import CHANGE, at, batch, finish, perceptron
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


@program("effects", None)
def dict_of_metrics() -> Program:
    model, metrics = perceptron(), defaultdict(list)

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        metrics["loss"].append(loss.item())
        metrics["calls"].append(len(metrics["calls"]))
        if len(metrics["calls"]) % 3 == 0:
            metrics["every third"].append(metrics["loss"][-3:])
        return loss

    return Program(model, step, lambda: metrics)


@program("effects", None)
def detached_losses_are_summed_later() -> Program:
    model, losses, sums = perceptron(), [], []

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        losses.append(loss.detach())
        return loss

    def before(call: int) -> None:
        if call % 5 == 0:
            sums.append(torch.stack(losses).sum())
            losses.clear()

    return Program(model, step, lambda: [losses, sums], before=before)


@program("effects", None)
def last_outputs_by_name() -> Program:
    model = perceptron()
    last: dict[str, Any] = {}

    def step(x: Any, y: Any) -> Any:
        hidden = model[1](model[0](x))
        logits = model[2](hidden)
        last.update(hidden=hidden.detach(), logits=logits.detach().clone(), first=x[0])
        return finish(logits, y), last["logits"]

    return Program(model, step, lambda: last)


@program("effects", 1)
def last_losses_in_a_deque() -> Program:
    model = perceptron()
    losses: deque[Any] = deque(maxlen=3)

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        losses.append(loss.detach())
        backward(loss / torch.stack(list(losses)).mean())
        return loss

    return Program(model, step, lambda: losses)


@program("effects", 1)
def loss_with_its_graph_is_kept() -> Program:
    model, trainer = perceptron(), types.SimpleNamespace(loss=None, seen=[])

    def step(x: Any, y: Any) -> Any:
        if trainer.loss is not None:
            trainer.seen.append((trainer.loss.item(), trainer.loss.requires_grad))
        trainer.loss = F.cross_entropy(model(x), y)
        return backward(trainer.loss)

    return Program(model, step, lambda: [trainer.loss, trainer.seen])


@program("effects", CHANGE)
def callbacks_that_become_more() -> Program:
    model = perceptron()
    seen: Counter[str] = Counter()
    callbacks: list[Any] = [lambda logits: seen.update(first=len(logits))]

    def penalty(logits: Any) -> Any:
        seen["penalty"] += 1
        return 0.1 * logits.square().sum()

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        extra: Any = [value for callback in callbacks if (value := callback(logits)) is not None]
        return backward(sum(extra, F.cross_entropy(logits, y)))

    change = at(CHANGE, lambda: callbacks.append(penalty))
    return Program(model, step, lambda: seen, before=change)


@program("effects", 1)
def batches_of_an_iterator() -> Program:
    model, numbers, seen = perceptron(), itertools.count(), []
    batches = map(batch, numbers)

    def step() -> Any:
        x, y = next(batches)
        seen.append(x[0, 0].item())
        return finish(model(x), y)

    return Program(model, step, lambda: [seen, repr(numbers)], lambda _call: ())


@program("effects", 1)
def epochs_of_a_loader() -> Program:
    # The last batch of an epoch is smaller, and each epoch draws its order.
    x, y = (torch.cat(parts) for parts in zip(*map(batch, range(4)), strict=True))
    loader: Any = DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True)
    model, state = perceptron(), types.SimpleNamespace(batches=iter(loader), epoch=0)

    def step() -> Any:
        try:
            x, y = next(state.batches)
        except StopIteration:
            state.batches, state.epoch = iter(loader), state.epoch + 1
            x, y = next(state.batches)
        return finish(model(x), y), state.epoch

    return Program(model, step, lambda: state.epoch, lambda _call: ())


@program("effects", 6)
def generator_that_gets_the_loss() -> Program:
    def schedule() -> Any:
        scale, losses = 1.0, []
        while True:
            losses.append((yield scale))
            if len(losses) % 6 == 0:
                scale *= 0.5

    model, scales = perceptron(), schedule()
    scale = [next(scales)]

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x) * scale[0], y)
        scale[0] = scales.send(loss.item())
        return loss

    return Program(model, step, lambda: [scale, scales.gi_frame.f_locals["losses"]])


@program("effects", None)
def lines_of_a_logger() -> Program:
    model, page = perceptron(), io.StringIO()
    logger = logging.Logger("follow", logging.INFO)
    logger.addHandler(logging.StreamHandler(page))

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        logger.info("loss %.6f of %d rows", loss, len(x))
        logger.debug("gradient %s", model[2].bias.grad)
        return loss

    def before(call: int) -> None:
        logger.setLevel(logging.DEBUG if call % 4 == 3 else logging.INFO)

    return Program(model, step, page.getvalue, before=before)


@program("effects", None)
def standard_output_is_redirected() -> Program:
    model, pages = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        page = io.StringIO()
        with contextlib.redirect_stdout(page):
            loss = finish(model(x), y)
            print(loss, x.shape)
        pages.append(page.getvalue())
        return loss

    return Program(model, step, lambda: pages)


@program("effects", None)
def scopes_that_are_entered() -> Program:
    model, events = perceptron(), []

    @contextlib.contextmanager
    def scope(name: str) -> Any:
        events.append(f"enter {name}")
        try:
            yield
        finally:
            events.append(f"leave {name}")

    def step(x: Any, y: Any) -> Any:
        with scope("forward"), scope(f"call {len(events) // 4}"):
            loss = F.cross_entropy(model(x), y)
        return backward(loss)

    return Program(model, step, lambda: events)


@program("effects", CHANGE)
def error_before_the_backward() -> Program:
    model = perceptron()
    calls: Counter[str] = Counter()

    def step(x: Any, y: Any) -> Any:
        calls["begun"] += 1
        logits = model(x)
        if calls["begun"] == CHANGE + 1:
            raise ValueError(f"the batch of call {calls['begun']} is bad")
        calls["done"] += 1
        return finish(logits, y)

    return Program(model, step, lambda: calls, catches=(ValueError,))


@program("effects", CHANGE)
def error_behind_the_backward() -> Program:
    # The gradients of the failed call stay, and those of the next call are added to them.
    model = perceptron()
    calls: Counter[str] = Counter()

    def step(x: Any, y: Any) -> Any:
        calls["begun"] += 1
        loss = finish(model(x), y)
        if calls["begun"] == CHANGE + 1:
            raise ArithmeticError("the loss is refused", round(loss.item(), 3))
        return loss

    return Program(model, step, lambda: calls, catches=(ArithmeticError,))


@program("effects", None)
def attributes_of_tensors() -> Program:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        for p in model.parameters():
            p.updates = getattr(p, "updates", 0) + 1
            p.largest = max(getattr(p, "largest", 0.0), p.grad.abs().max().item())
        return loss

    return Program(model, step, lambda: [dict(vars(p)) for p in model.parameters()])


@program("effects", 1)
def inputs_are_kept_and_changed() -> Program:
    model, kept = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        kept.append(x)
        loss = finish(model(x), y)
        with torch.no_grad():
            kept[-1].sub_(x.mean())
            kept[0].add_(1)
        return loss

    return Program(model, step, lambda: kept)


@program("effects", 1)
def checkpoint_in_memory() -> Program:
    model, files, calls = perceptron(nn.BatchNorm1d(8)), [], itertools.count()

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        if next(calls) % 4 == 0:
            files.append(io.BytesIO())
            torch.save({"loss": loss.item(), "model": model.state_dict()}, files[-1])
        return loss

    def read(file: io.BytesIO) -> Any:
        file.seek(0)
        return torch.load(file)

    def before(call: int) -> None:
        if call == 14:
            model.load_state_dict(read(files[1])["model"])

    return Program(model, step, lambda: list(map(read, files)), before=before)


@program("effects", 1)
def copies_of_the_best_weights() -> Program:
    model = perceptron()
    best: dict[str, Any] = {"loss": float("inf"), "weights": {}, "calls": []}

    def step(x: Any, y: Any) -> Any:
        loss = finish(model(x), y)
        best["calls"].append(loss.item() < best["loss"])
        if best["calls"][-1]:
            best.update(loss=loss.item(), weights=copy.deepcopy(model.state_dict()))
        return loss

    return Program(model, step, lambda: best)


@program("effects", 1)
def object_that_can_be_called() -> Program:
    class Trainer:
        calls = 0

        def __init__(self) -> None:
            self.model = perceptron()
            self.history: list[str] = []

        def __call__(self, x: Any, y: Any) -> Any:
            type(self).calls += 1
            self.history += [f"{self.calls}: {x[0, 0]:.3f}"]
            return self.finished(self.model(x), y)

        def finished(self, logits: Any, y: Any) -> Any:
            return finish(logits * (2.0 if self.calls % 2 else 1.0), y)

    trainer = Trainer()
    return Program(trainer.model, trainer, lambda: [trainer.calls, trainer.history])
