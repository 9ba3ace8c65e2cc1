"""Programs whose step uses a number of Python that changes, wherever Python keeps the number."""

from __future__ import annotations

import contextvars
import enum
import functools
import io
import itertools
import json
import os
import queue
import random
import types
import weakref
from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from follow_harness import Program, program
from hostile import CHANGE, at, finish, nothing, perceptron


def factor(changes: int) -> Callable[[Callable[[], Any]], None]:
    """Registers a program that multiplies the logits by a number.

    The decorated function returns the function that the step calls for the number, and the loop's
    part before a call.
    """

    def register(make: Callable[[], Any]) -> None:
        def build() -> Program:
            model, (number, before) = perceptron(), make()

            def step(x: Any, y: Any) -> Any:
                return finish(model(x) * number(), y)

            return Program(model, step, before=before)

        build.__name__ = make.__name__
        program("numbers", changes)(build)

    return register


class Settings:
    scale = 1.0


class Drifting:
    """Its property is another number each time it is read."""

    def __init__(self) -> None:
        self.reads = 0

    @property
    def scale(self) -> float:
        self.reads += 1
        return 1.0 + self.reads % 4


class Phase(enum.Enum):
    WARM = 1.0
    HOT = 4.0


class Knobs(NamedTuple):
    scale: float
    name: str = "knobs"


@dataclass
class Config:
    scale: float = 1.0
    schedule: dict[str, Any] = field(default_factory=lambda: {"loss": {"weights": [1.0, 1.0]}})


settings = types.ModuleType("settings")
scale_in_context = contextvars.ContextVar("scale_in_context", default=1.0)


@factor(CHANGE)
def module_global() -> Any:
    settings.scale = 1.0  # type: ignore[attr-defined]
    return lambda: settings.scale, at(CHANGE, lambda: setattr(settings, "scale", 0.5))


@factor(CHANGE)
def weak_reference() -> Any:
    owner = Settings()
    reference: Any = weakref.ref(owner)
    # The loop holds the object; the step has the reference alone.
    return lambda: reference().scale, lambda call: setattr(owner, "scale", 1.0 + call // CHANGE)


@factor(CHANGE)
def long_list() -> Any:
    numbers = [1.0] * 2000
    return lambda: numbers[1500], at(CHANGE, lambda: numbers.__setitem__(1500, 0.5))


@factor(CHANGE)
def byte_of_a_bytearray() -> Any:
    flags = bytearray(64)
    return lambda: 1 + flags[40], at(CHANGE, lambda: flags.__setitem__(40, 2))


@factor(CHANGE)
def view_of_a_bytearray() -> Any:
    numbers = bytearray(np.ones(3, np.float32).tobytes())
    view = memoryview(numbers).cast("f")
    shared = torch.frombuffer(numbers, dtype=torch.float32)
    return lambda: shared, at(CHANGE, lambda: view.__setitem__(1, 3.0))


@factor(CHANGE)
def nested_dict_in_a_dataclass() -> Any:
    config = Config()
    inner = config.schedule["loss"]
    return lambda: inner["weights"][-1], at(CHANGE, lambda: inner["weights"].append(0.25))


@factor(CHANGE)
def dataclass_is_replaced() -> Any:
    holder = [Config()]
    return lambda: holder[0].scale, at(
        CHANGE, lambda: holder.__setitem__(0, replace(holder[0], scale=0.5))
    )


@factor(CHANGE)
def named_tuple_is_replaced() -> Any:
    holder = {"knobs": Knobs(1.0)}
    return lambda: holder["knobs"].scale, at(
        CHANGE, lambda: holder.update(knobs=holder["knobs"]._replace(scale=2.0))
    )


@factor(CHANGE)
def layered_mapping() -> Any:
    layers = ChainMap({}, {"scale": 1.0})
    return lambda: layers["scale"], at(CHANGE, lambda: layers.maps[0].update(scale=2.0))


@factor(CHANGE)
def member_of_an_enum() -> Any:
    phase = [Phase.WARM]
    return lambda: phase[0].value, at(CHANGE, lambda: phase.__setitem__(0, Phase.HOT))


@factor(1)
def counter_like_a_clock() -> Any:
    clock = itertools.count(1000, 3).__next__
    return lambda: torch.tensor(float(clock() % 7)), nothing


@factor(1)
def fraction_that_the_step_grows() -> Any:
    total = [Fraction(1, 3)]

    def number() -> float:
        total[0] += Fraction(1, 7)
        return float(total[0])

    return number, nothing


@factor(CHANGE)
def decimal_number() -> Any:
    rates = {"main": Decimal("1.10")}
    return lambda: float(rates["main"]), at(CHANGE, lambda: rates.update(main=Decimal("0.35")))


@factor(CHANGE)
def environment_variable() -> Any:
    os.environ["FOLLOW_SCALE"] = "1.0"
    return lambda: float(os.environ["FOLLOW_SCALE"]), at(
        CHANGE, lambda: os.environ.update(FOLLOW_SCALE="0.5")
    )


@factor(CHANGE)
def attribute_of_a_base_class() -> Any:
    base = type("Base", (Settings,), {})
    instance: Any = type("Derived", (base,), {})()
    return lambda: instance.scale, at(CHANGE, lambda: setattr(base, "scale", 0.5))


@factor(CHANGE - 1)
def default_that_is_mutated() -> Any:
    def number(history: Any = [0]) -> Any:  # noqa: B006
        history[0] += 1
        return 1 + history[0] // CHANGE

    return number, nothing


@factor(CHANGE)
def context_variable() -> Any:
    scale_in_context.set(1.0)
    return scale_in_context.get, at(CHANGE, lambda: scale_in_context.set(0.5))


@factor(1)
def property_that_counts() -> Any:
    drifting = Drifting()
    return lambda: drifting.scale, nothing


@factor(CHANGE)
def partial_is_made_anew() -> Any:
    power = {"now": functools.partial(pow, 2.0)}
    return lambda: power["now"](1), at(
        CHANGE, lambda: power.update(now=functools.partial(pow, 3.0))
    )


@factor(CHANGE)
def cache_of_a_function() -> Any:
    scale = [1.0]
    number = functools.lru_cache(maxsize=None)(lambda: scale[0])

    def before(call: int) -> None:
        scale[0] = 1.0 + call
        if call % CHANGE == 0:
            number.cache_clear()

    return number, before


@factor(CHANGE)
def lines_of_a_text() -> Any:
    lines = io.StringIO("1.0\n" * CHANGE + "0.5\n" * 100)
    return lambda: float(next(lines)), nothing


@factor(CHANGE)
def number_in_a_document() -> Any:
    page = [json.dumps({"loss": {"scale": 1.0}})]
    return lambda: json.loads(page[0])["loss"]["scale"], at(
        CHANGE, lambda: page.__setitem__(0, page[0].replace("1.0", "0.25"))
    )


@factor(CHANGE)
def queue_of_numbers() -> Any:
    numbers: Any = queue.SimpleQueue()
    for call in range(100):
        numbers.put(1.0 + call // CHANGE)
    return numbers.get_nowait, nothing


@factor(1)
def factor_by_python_random() -> Any:
    return lambda: 0.5 + random.random(), nothing


@factor(1)
def factor_by_numpy_random() -> Any:
    return lambda: np.random.uniform(0.5, 1.5), nothing


@factor(1)
def noise_by_python_random() -> Any:
    return lambda: torch.tensor([random.gauss(1.0, 0.1) for _ in range(3)]), nothing


@factor(1)
def array_that_grows_in_place() -> Any:
    weights = np.ones(3, np.float32)

    def number() -> Any:
        weights[:] += np.arange(3) / 10
        return torch.as_tensor(weights)

    return number, nothing


@factor(1)
def size_of_a_set() -> Any:
    seen: set[int] = set()
    return lambda: 1.0 + len(seen), lambda call: seen.add(call // CHANGE)
