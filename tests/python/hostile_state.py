"""Hostile programs: attributes, functions and state of Python that the step reads or changes."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
from hostile import CHANGE, HERE, Case, at, finish, perceptron, program
from torch.nn import functional as F


class Trainer:
    """A user's trainer, in the shapes that such classes have."""

    smoothing = 1.0

    def __init__(self) -> None:
        self.model = perceptron()
        self.temperature = 1.0
        self._warm = 1.0
        self.batches_seen = 0
        self.activation = "tanh"
        self.depth = 3
        self.limits = (1.0, 1.0)
        self.scaler: Any = types.SimpleNamespace(scale=1.0)

    @property
    def warmth(self) -> float:
        return 2 * self._warm

    def scaled(self, x: Any, y: Any) -> Any:
        return finish(self.model(x) / self.temperature, y)

    def smoothed(self, x: Any, y: Any) -> Any:
        return finish(self.model(x) * self.smoothing, y)

    def warmed(self, x: Any, y: Any) -> Any:
        return finish(self.model(x) * self.warmth, y)

    def counted(self, x: Any, y: Any) -> Any:
        self.batches_seen += 1
        return finish(self.model(x) * (2.0 if self.batches_seen > 12 else 1.0), y)

    def logged(self, x: Any, y: Any) -> Any:
        self.batches_seen += 1
        return finish(self.model(x), y)

    def activated(self, x: Any, y: Any) -> Any:
        hidden = getattr(F, self.activation)(self.model[0](x))
        return finish(self.model[2](hidden), y)

    def left_early(self, x: Any, y: Any) -> Any:
        for i, layer in enumerate(self.model):
            if i == self.depth:
                break
            x = layer(x)
        return finish(x, y)

    def clamped(self, x: Any, y: Any) -> Any:
        low, high = self.limits
        return finish(self.model(x) * low + high, y)

    def loss_scaled(self, x: Any, y: Any) -> Any:
        loss = F.cross_entropy(self.model(x), y)
        (loss * self.scaler.scale).backward()
        return loss


def attribute(
    name: str, method: str, attribute: str, value: Any, *, of_class: bool = False
) -> None:
    """Registers a program that changes an attribute of the step's object or of its class."""

    def make() -> Case:
        kind = type("Trainer", (Trainer,), {})
        trainer = kind()
        owner = kind if of_class else trainer
        step = getattr(trainer, method)
        return Case(trainer.model, step, at(CHANGE, lambda: setattr(owner, attribute, value)))

    make.__name__ = name
    program("attribute", attribute)(make)


attribute("attribute_of_self", "scaled", "temperature", 0.5)
attribute("attribute_of_the_class", "smoothed", "smoothing", 0.9)
attribute("attribute_behind_a_property", "warmed", "_warm", 0.25)
attribute("property_of_the_class", "warmed", "warmth", 0.5, of_class=True)
attribute("attribute_that_is_a_text", "activated", "activation", "relu")
attribute("attribute_that_is_a_depth", "left_early", "depth", 1)
attribute("attribute_that_is_a_tuple", "clamped", "limits", (0.5, 2.0))
attribute("attribute_that_is_an_object", "loss_scaled", "scaler", types.SimpleNamespace(scale=8.0))


@program("attribute", r"scale")
def loss_scale_in_an_object() -> Case:
    trainer = Trainer()
    return Case(
        trainer.model,
        trainer.loss_scaled,
        at(CHANGE, lambda: setattr(trainer.scaler, "scale", 4.0)),
    )


@program("inside", rf"batches_seen|{HERE}")
def counter_with_an_effect_from_call_12_on() -> Case:
    trainer = Trainer()
    return Case(trainer.model, trainer.counted)


@program("inside", rf"batches_seen|{HERE}", harmless=True)
def counter_without_an_effect() -> Case:
    trainer = Trainer()
    return Case(trainer.model, trainer.logged)


@program("inside", rf"scales|iterator|{HERE}")
def iterator_that_is_advanced() -> Case:
    model, scales = perceptron(), iter([1.0] * 12 + [2.0] * 1000)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * next(scales), y)

    return Case(model, step)


@program("inside", rf"schedule|{HERE}")
def generator_that_is_advanced() -> Case:
    def warm_up() -> Any:
        for n in range(1000):
            yield min(1.0, 0.1 * (n + 1))

    model, schedule = perceptron(), warm_up()

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * next(schedule), y)

    return Case(model, step)


@program("inside", rf"lengths|{HERE}")
def length_of_a_list_that_the_step_extends() -> Case:
    model, lengths = perceptron(), []

    def step(x: Any, y: Any) -> Any:
        lengths.append(1)
        return finish(model(x) * (1.0 + (len(lengths) > 12)), y)

    return Case(model, step)


@program("inside", rf"average|{HERE}")
def tensor_that_the_step_rebinds() -> Case:
    model, state = perceptron(), {"average": torch.zeros(6, 3)}

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        state["average"] = 0.5 * state["average"] + 0.5 * logits.detach()
        return finish(logits - 0.1 * state["average"], y)

    return Case(model, step)


@program("function", r"scale")
def cell_of_the_closure() -> Case:
    model, scale = perceptron(), 1.0

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * scale, y)

    def change() -> None:
        nonlocal scale
        scale = 0.5

    return Case(model, step, at(CHANGE, change))


global_scale = 1.0


def global_penalty(logits: Any) -> Any:
    return logits * 1.0


@program("function", r"global_scale")
def global_number() -> Case:
    global global_scale
    model, global_scale = perceptron(), 1.0

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * global_scale, y)

    return Case(model, step, at(CHANGE, lambda: globals().update(global_scale=0.5)))


@program("function", r"global_scale")
def global_number_behind_two_calls() -> Case:
    global global_scale
    model, global_scale = perceptron(), 1.0

    def scale() -> float:
        return global_scale

    def scaled(x: Any) -> Any:
        return model(x) * scale()

    def step(x: Any, y: Any) -> Any:
        return finish(scaled(x), y)

    return Case(model, step, at(CHANGE, lambda: globals().update(global_scale=0.5)))


@program("function", r"global_penalty")
def global_function_is_replaced() -> Case:
    global global_penalty
    first = global_penalty = lambda logits: logits * 1.0
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        return finish(global_penalty(model(x)), y)

    assert global_penalty is first
    return Case(model, step, at(CHANGE, lambda: globals().update(global_penalty=torch.square)))


@program("function", r"scale|default")
def default_argument() -> Case:
    model = perceptron()

    def step(x: Any, y: Any, scale: float = 1.0) -> Any:
        return finish(model(x) * scale, y)

    return Case(model, step, at(CHANGE, lambda: setattr(step, "__defaults__", (0.5,))))


@program("function", r"scale|default")
def keyword_default_of_a_function_that_is_called() -> Case:
    model = perceptron()

    def scaled(x: Any, *, scale: float = 1.0) -> Any:
        return model(x) * scale

    def step(x: Any, y: Any) -> Any:
        return finish(scaled(x), y)

    return Case(model, step, at(CHANGE, lambda: setattr(scaled, "__kwdefaults__", {"scale": 0.5})))


@program("function", r"scale|keywords")
def keywords_of_a_partial() -> Case:
    model = perceptron()

    def train(x: Any, y: Any, scale: float) -> Any:
        return finish(model(x) * scale, y)

    step = functools.partial(train, scale=1.0)
    return Case(model, step, at(CHANGE, lambda: step.keywords.update(scale=0.5)))


@program("function", r"temperature")
def bound_method_that_the_step_calls() -> Case:
    class Sharpener:
        def __init__(self) -> None:
            self.temperature = 1.0

        def sharpen(self, logits: Any) -> Any:
            return logits / self.temperature

    model, sharpener = perceptron(), Sharpener()
    sharpen = sharpener.sharpen

    def step(x: Any, y: Any) -> Any:
        return finish(sharpen(model(x)), y)

    return Case(model, step, at(CHANGE, lambda: setattr(sharpener, "temperature", 0.5)))


@program("function", r"losses|main")
def lambda_in_a_dict() -> Case:
    model, losses = perceptron(), {"main": lambda logits: logits * 1.0}

    def step(x: Any, y: Any) -> Any:
        return finish(losses["main"](model(x)), y)

    return Case(model, step, at(CHANGE, lambda: losses.update(main=lambda logits: logits.square())))


@program("function", rf"scaled|__code__|{HERE}")
def code_of_a_function() -> Case:
    model = perceptron()

    def scaled(x: Any) -> Any:
        return x * 1.0

    def squared(x: Any) -> Any:
        return x * x

    def step(x: Any, y: Any) -> Any:
        return finish(scaled(model(x)), y)

    return Case(model, step, at(CHANGE, lambda: setattr(scaled, "__code__", squared.__code__)))
