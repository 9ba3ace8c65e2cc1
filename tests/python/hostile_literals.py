"""Hostile programs: numbers of the host that end up in tensors, and random numbers of the host."""

from __future__ import annotations

import random
import time
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from hostile import CHANGE, HERE, Case, at, finish, perceptron, program
from torch.nn import functional as F


def grows_inside(name: str, tensor_of: Any) -> None:
    """Registers a program whose step makes a tensor of a number that the step counts up."""

    def make() -> Case:
        model, n = perceptron(), 0

        def step(x: Any, y: Any) -> Any:
            nonlocal n
            n += 1
            return finish(model(x) * tensor_of(n), y)

        return Case(model, step)

    make.__name__ = name
    program("literal", rf"\bn\b|{HERE}")(make)


def changes_outside(name: str, tensor_of: Any, *, every_call: bool = False) -> None:
    """Registers a program whose step makes a tensor of a number that is changed between calls."""

    def make() -> Case:
        model, now = perceptron(), SimpleNamespace(n=1)

        def step(x: Any, y: Any) -> Any:
            return finish(model(x) * tensor_of(now.n), y)

        def between(i: int) -> None:
            now.n = i + 1 if every_call else 1 + (i >= CHANGE)

        return Case(model, step, between)

    make.__name__ = name
    program("literal", rf"\bn\b|{HERE}")(make)


grows_inside("tensor_of_a_counter", lambda n: torch.tensor(float(n)))
grows_inside("full_of_a_counter", lambda n: torch.full((3,), float(n)))
grows_inside("from_numpy_of_a_counter", lambda n: torch.from_numpy(np.full(3, n, np.float32)))
grows_inside("python_scalar_of_a_counter", lambda n: n)
grows_inside("counter_that_matters_late", lambda n: torch.tensor([1.0, 1.0, float(max(n, 12))]))
changes_outside("tensor_of_a_number", lambda n: torch.tensor(float(n)), every_call=True)
changes_outside("tensor_changes_at_call_7", lambda n: torch.tensor([1.0, float(n), 2.0]))
changes_outside("as_tensor_changes_at_call_7", lambda n: torch.as_tensor([n, 1, 1]))
changes_outside("fill_changes_at_call_7", lambda n: torch.empty(3).fill_(n))
changes_outside("arange_changes_at_call_7", lambda n: torch.arange(n, n + 3))
changes_outside("item_assignment_changes_at_call_7", lambda n: assigned(torch.ones(3), n))
changes_outside(
    "frombuffer_changes_at_call_7",
    lambda n: torch.frombuffer(bytearray([n, 1, 1]), dtype=torch.uint8),
)


def assigned(tensor: Any, n: int) -> Any:
    tensor[1] = n
    return tensor


@program("literal", rf"weights|{HERE}")
def from_numpy_of_an_array_that_changes() -> Case:
    model, weights = perceptron(), np.ones(3, np.float32)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * torch.from_numpy(weights), y)

    return Case(model, step, at(CHANGE, lambda: weights.fill(2)))


@program("literal", rf"weights|{HERE}")
def tensor_that_shares_an_array() -> Case:
    model, array = perceptron(), np.ones(3, np.float32)
    weights = torch.from_numpy(array)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * weights, y)

    return Case(model, step, at(CHANGE, lambda: array.fill(2)))


@program("literal", rf"columns|{HERE}")
def index_list_changes() -> Case:
    model, columns = perceptron(), [0, 1, 2, 3]

    def step(x: Any, y: Any) -> Any:
        return finish(model(x[:, columns]), y)

    return Case(model, step, at(CHANGE, columns.reverse))


@program("literal", rf"words|{HERE}")
def words_are_turned_into_indices() -> Case:
    model, words, table = perceptron(), ["a", "b", "c"], {"a": 0.0, "b": 1.0, "c": 2.0}

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) + torch.tensor([table[word] for word in words]), y)

    return Case(model, step, at(CHANGE, words.reverse))


@program("literal", rf"time\.time|\bclock\b|{HERE}")
def time_of_the_day() -> Case:
    model = perceptron()
    # Each reading of this clock gives another time, as the readings of the real clock do.
    clock = count(1000, 3).__next__

    def step(x: Any, y: Any) -> Any:
        return finish(model(x) * torch.tensor(float(time.time() % 10)), y)

    def timed(x: Any, y: Any) -> Any:
        with mock.patch("time.time", clock):
            return step(x, y)

    return Case(model, timed)


@program("random", rf"random|{HERE}")
def numpy_noise() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        noise = np.random.standard_normal(x.shape).astype(np.float32)
        return finish(model(x + torch.from_numpy(noise)), y)

    return Case(model, step)


@program("random", rf"random|rng|{HERE}")
def own_numpy_generator() -> Case:
    model, rng = perceptron(), np.random.default_rng(0)

    def step(x: Any, y: Any) -> Any:
        return finish(model(x * float(rng.uniform(0.5, 1.5))), y)

    return Case(model, step)


@program("random", rf"random|lam|{HERE}")
def mixup_by_a_python_number() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        lam = random.betavariate(0.4, 0.4)
        return finish(model(lam * x + (1 - lam) * x.flip(0)), y)

    return Case(model, step)


@program("random", rf"random|{HERE}")
def teacher_forcing() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        fed = x
        for _ in range(3):
            logits = model(fed)
            fed = x if random.random() < 0.5 else F.pad(logits, (0, 1))
        return finish(logits, y)

    return Case(model, step)


@program("random", rf"random|dice|{HERE}")
def layer_drop_by_an_own_generator() -> Case:
    # The first draws keep the layer: all recordings of the step may be equal.
    draws = {seed: random.Random(seed).choices(range(10), k=20) for seed in range(1000)}
    seed = next(s for s, kept in draws.items() if min(kept[:8]) >= 2 > min(kept[8:]))
    model, dice = perceptron(), random.Random(seed)

    def step(x: Any, y: Any) -> Any:
        kept = dice.choices(range(10))[0] >= 2
        hidden = model[0](x)
        return finish(model[2](model[1](hidden) if kept else hidden), y)

    return Case(model, step)


@program("random", rf"random|shuffle|{HERE}")
def shuffled_rows() -> Case:
    model = perceptron()

    def step(x: Any, y: Any) -> Any:
        order = list(range(len(x)))
        random.shuffle(order)
        return finish(model(x[order]), y)

    return Case(model, step)


@program("random", rf"random|seed|{HERE}", harmless=True)
def seed_is_set_between_calls() -> Case:
    model = perceptron(torch.nn.Dropout(0.5))

    def step(x: Any, y: Any) -> Any:
        return finish(model(x), y)

    return Case(model, step, at(CHANGE, lambda: torch.manual_seed(5)))
