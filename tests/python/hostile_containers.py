"""Hostile programs: containers, objects and the process hold numbers that the step reads."""

from __future__ import annotations

import contextvars
import os
import threading
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hostile import CHANGE, HERE, Case, at, finish, perceptron, program


@program("container", r"scales")
def list_of_numbers() -> Case:
    model, scales = perceptron(), [1.0, 1.0]

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * scales[1], y)

    return Case(model, step, at(CHANGE, lambda: scales.__setitem__(1, 0.5)))


@program("container", r"scale")
def entry_of_a_nested_dict() -> Case:
    model, config = perceptron(), {"loss": {"scale": 1.0}}

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * config["loss"]["scale"], y)

    return Case(model, step, at(CHANGE, lambda: config["loss"].update(scale=0.5)))


@program("container", r"scale")
def field_of_a_dataclass() -> Case:
    @dataclass
    class Config:
        scale: float = 1.0

    model, config = perceptron(), Config()

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * config.scale, y)

    return Case(model, step, at(CHANGE, lambda: setattr(config, "scale", 0.5)))


@program("container", r"scale")
def slot_of_nested_objects() -> Case:
    class Node:
        child: Any
        scale: float
        __slots__ = ("child", "scale")

    model, root = perceptron(), Node()
    root.child = Node()
    root.child.scale = 1.0

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * root.child.scale, y)

    return Case(model, step, at(CHANGE, lambda: setattr(root.child, "scale", 0.5)))


@program("container", r"skipped")
def member_of_a_set() -> Case:
    model, skipped = perceptron(), set()

    def step(x: Any, y: Any) -> Any:
        for i, layer in enumerate(model):
            x = x if i in skipped else layer(x)
        return finish(x, y)

    return Case(model, step, at(CHANGE, lambda: skipped.add(1)))


@program("container", r"penalties")
def list_of_tensors_is_extended() -> Case:
    model, penalties = perceptron(), [torch.ones(3)]

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) + sum(penalties), y)

    return Case(model, step, at(CHANGE, lambda: penalties.append(torch.arange(3.0))))


@program("container", rf"cache|epoch|{HERE}")
def cache_with_the_epoch_as_key() -> Case:
    model, cache, epoch = perceptron(), {}, 0

    def step(x: Any, y: Any) -> Any:
        if epoch not in cache:
            cache[epoch] = torch.linspace(0, 1 + epoch, 3)
        return finish(model(x) + cache[epoch], y)

    def change() -> None:
        nonlocal epoch
        epoch = 1

    return Case(model, step, at(CHANGE, change))


@program("container", r"\blr\b|param_groups")
def learning_rate_of_an_optimizer() -> Case:
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * (1 - optimizer.param_groups[0]["lr"]), y)

    return Case(model, step, at(CHANGE, lambda: optimizer.param_groups[0].update(lr=0.01)))


@program("container", r"scale")
def attribute_of_a_module_of_python() -> Case:
    model, config = perceptron(), types.ModuleType("config")
    config.__dict__["scale"] = 1.0

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * config.scale, y)

    return Case(model, step, at(CHANGE, lambda: setattr(config, "scale", 0.5)))


@program("process", rf"REPRISE_TEST_SCALE|environ|{HERE}")
def environment_variable() -> Case:
    model = perceptron()
    os.environ["REPRISE_TEST_SCALE"] = "1"

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * float(os.environ["REPRISE_TEST_SCALE"]), y)

    return Case(model, step, at(CHANGE, lambda: os.environ.update(REPRISE_TEST_SCALE="2")))


@program("process", rf"scale|contextvar|{HERE}")
def context_variable() -> Case:
    model, scale = perceptron(), contextvars.ContextVar("scale", default=1.0)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * scale.get(), y)

    return Case(model, step, at(CHANGE, lambda: scale.set(0.5)))


@program("process", rf"scale|threading|{HERE}")
def thread_local_number() -> Case:
    model, local = perceptron(), threading.local()
    local.scale = 1.0

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * local.scale, y)

    return Case(model, step, at(CHANGE, lambda: setattr(local, "scale", 0.5)))


@program("container", r"flag")
def branch_on_a_byte() -> Case:
    model, flag = perceptron(), bytearray(b"\0")

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        return finish(logits.sin() if flag[0] else logits, y)

    return Case(model, step, at(CHANGE, lambda: flag.__setitem__(0, 1)))


@program("container", r"weights")
def number_in_an_array_of_numpy() -> Case:
    model, weights = perceptron(), np.ones(10_000)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * float(weights[7]), y)

    return Case(model, step, at(CHANGE, lambda: weights.__setitem__(7, 0.5)))


@program("container", r"weights")
def number_in_a_list_of_two_thousand() -> Case:
    model, weights = perceptron(), [1.0] * 2000

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * weights[1999], y)

    return Case(model, step, at(CHANGE, lambda: weights.__setitem__(1999, 0.5)))
