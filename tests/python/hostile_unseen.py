"""Hostile programs whose state no guard sees. Only lockstep finds their changes.

They are not among `hostile.PROGRAMS`: with the sparse lockstep, some calls behind the change are
wrong before it is found. With `lockstep="always"` each of them is right or refused.
"""

from __future__ import annotations

import array
import ctypes
import gc
import io
import mmap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from hostile import CHANGE, HERE, Case, Program, at, finish, perceptron, program
from torch import nn
from torch.nn import functional as F

UNSEEN: list[Program] = []
UNSEEN_KIND = "unseen"


def unseen(names: str = HERE) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    return program(UNSEEN_KIND, names, into=UNSEEN)


@unseen()
def number_in_a_c_variable() -> Case:
    model, rate = perceptron(), ctypes.c_double(1.0)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * rate.value, y)

    return Case(model, step, at(CHANGE, lambda: setattr(rate, "value", 0.5)))


@unseen()
def number_in_an_array() -> Case:
    model, rates = perceptron(), array.array("d", [1.0])

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * rates[0], y)

    return Case(model, step, at(CHANGE, lambda: rates.__setitem__(0, 0.5)))


@unseen()
def schedule_that_changes_after_some_calls() -> Case:
    model, calls = perceptron(), ctypes.c_long(0)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * (1.0 if calls.value < CHANGE else 0.1), y)

    return Case(model, step, lambda call: setattr(calls, "value", call))


@unseen()
def literal_from_a_buffer() -> Case:
    model, numbers = perceptron(), io.BytesIO(b"\1\1\1")

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * torch.tensor(list(numbers.getbuffer())), y)

    return Case(model, step, at(CHANGE, lambda: numbers.getbuffer().__setitem__(1, 2)))


@unseen()
def number_in_a_large_array_of_numpy() -> Case:
    model, weights = perceptron(), np.ones(200_000)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * float(weights[7]), y)

    return Case(model, step, at(CHANGE, lambda: weights.__setitem__(7, 0.5)))


@unseen()
def number_in_a_long_list() -> Case:
    model, weights = perceptron(), [1.0] * 70_000

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * weights[-1], y)

    return Case(model, step, at(CHANGE, lambda: weights.__setitem__(-1, 0.5)))


@unseen()
def event_of_a_library() -> Case:
    model, warm = perceptron(), threading.Event()

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * (0.5 if warm.is_set() else 1.0), y)

    return Case(model, step, at(CHANGE, warm.set))


@unseen()
def setting_of_the_interpreter() -> Case:
    model = perceptron()
    gc.set_threshold(700, 10, 10)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * gc.get_threshold()[1], y)

    return Case(model, step, at(CHANGE, lambda: gc.set_threshold(700, 11, 10)))


@unseen()
def depth_in_shared_memory() -> Case:
    layers, depth = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), mmap.mmap(-1, 1)
    model = nn.ModuleDict({"layers": layers, "head": nn.Linear(4, 3)})
    depth[0] = 3

    def step(x: Any, y: Any) -> Any:
        for layer in layers[: depth[0]]:
            x = layer(x).tanh()
        return finish(model["head"](x), y)

    return Case(model, step, at(CHANGE, lambda: depth.__setitem__(0, 2)))


@unseen()
def rows_that_a_c_variable_leaves() -> Case:
    model, rows = perceptron(), ctypes.c_int(6)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x)[: rows.value], y[: rows.value])

    return Case(model, step, at(CHANGE, lambda: setattr(rows, "value", 3)))


@unseen()
def dropout_of_a_c_variable() -> Case:
    model, p = perceptron(), ctypes.c_double(0.5)

    def step(x: Any, y: Any) -> Any:
        return finish(F.dropout(model(x), p.value), y)

    return Case(model, step, at(CHANGE, lambda: setattr(p, "value", 0.25)))


@unseen()
def operation_in_place_on_a_view() -> Case:
    model, column = perceptron(), ctypes.c_int(0)

    def step(x: Any, y: Any) -> Any:
        logits = model(x) + 0
        logits[:, column.value].mul_(2)
        return finish(logits, y)

    return Case(model, step, at(CHANGE, lambda: setattr(column, "value", 2)))


@unseen()
def parameter_that_a_c_variable_chooses() -> Case:
    model, chosen = nn.ModuleList(nn.Linear(4, 3) for _ in range(2)), ctypes.c_int(0)

    def step(x: Any, y: Any) -> Any:
        return finish(model[chosen.value](x), y)

    return Case(model, step, at(CHANGE, lambda: setattr(chosen, "value", 1)))


@unseen(rf"numpy\.random|{HERE}")
def numpy_random_from_some_call_on() -> Case:
    model, late = perceptron(), ctypes.c_bool(False)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * (float(np.random.rand()) if late.value else 1.0), y)

    return Case(model, step, at(CHANGE, lambda: setattr(late, "value", True)))


@unseen()
def branch_on_an_input_read_by_numpy() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        logits = model(x)
        return finish(logits * 2 if x.numpy().sum() > 0 else logits, y)

    return Case(model, step)


@unseen()
def branch_on_a_result_read_by_numpy() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        logits, doubled = model(x), x * 2
        return finish(logits * 2 if doubled.numpy().sum() > 0 else logits, y)

    return Case(model, step)


@unseen(r"result")
def number_that_is_returned() -> Case:
    model, epoch = perceptron(), ctypes.c_int(0)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y), epoch.value

    return Case(model, step, at(CHANGE, lambda: setattr(epoch, "value", 1)))


@unseen()
def object_behind_a_c_variable() -> Case:
    model, box = perceptron(), ctypes.py_object({"scale": 1.0})

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * box.value["scale"], y)

    return Case(model, step, at(CHANGE, lambda: setattr(box, "value", {"scale": 0.5})))
