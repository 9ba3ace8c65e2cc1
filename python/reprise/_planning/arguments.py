"""Arguments that many functions take: budgets, time limits and observers."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .. import _core
from ..errors import InputError
from .problems import machine_text

# A budget is a number of bytes, a text such as "8 GiB", a share such as "60%" of plain training's
# peak, or None for no limit.
Budget = int | str | None


class Progress(NamedTuple):
    """The progress of a piece of work. Observers are called with it.

    Attributes:
        task: The work, for example "plan" or "profile".
        fraction: The share that is done, from 0 to 1, or None if it is unknown.
        message: A short text for people.
    """

    task: str
    fraction: float | None
    message: str


# An observer is a function that is called with the progress of the work. If it raises, the work
# stops.
Observer = Callable[[Progress], None]


def checked_budget(budget: Any) -> Budget:
    """Returns the budget as an int, a text or None. Texts are read later, by the core.

    Raises:
        InputError: The value is of no type that a budget can have.
    """
    if budget is None or isinstance(budget, str):
        return budget
    if hasattr(budget, "__index__") and not isinstance(budget, bool):
        number = operator.index(budget)  # NumPy's integers have an index, too.
        if abs(number) < 2**63:
            return number
    share = ""
    if isinstance(budget, float) and 0 < budget <= 1:
        share = f'; for a share of plain training\'s peak write "{100 * budget:g}%"'
    raise InputError(
        'a budget is a number of bytes as an int, a text such as "8 GiB" or "60%", or None for no '
        f"limit, not the {type(budget).__name__} {budget!r}{share}"
    )


def nanoseconds(time_limit: float | str) -> int:
    """Returns a time limit in nanoseconds.

    Args:
        time_limit: Seconds, or a text such as "10s" or "250ms".

    Raises:
        InputError: The value is no time limit.
    """
    if isinstance(time_limit, str):
        return _core.parse_duration(time_limit)
    if not 0 <= time_limit < 9e9:
        raise InputError(f"a time limit is a number of seconds from 0 to 9e9, not {time_limit!r}")
    return int(time_limit * 1e9)


def observe(observer: Observer | None) -> Callable[[str, float, str], None] | None:
    """Returns the function that the extensions call for an observer.

    The extensions give the task, the fraction and the message. A negative fraction is unknown.
    """
    if observer is None:
        return None

    def call(task: str, fraction: float, message: str) -> None:
        observer(Progress(task, None if fraction < 0 else fraction, message))

    return call


def options_of(function: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keyword-only arguments of a function out of names with values.

    With its `locals()` a function hands its options on without listing them again.
    """
    parameters = inspect.signature(function).parameters.values()
    return {p.name: given[p.name] for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def native_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns options in the form that the extensions take."""
    found = dict(options)
    if "time_limit" in found:
        found["time_limit_ns"] = nanoseconds(found.pop("time_limit"))
    if "machine" in found:
        found["machine"] = machine_text(found["machine"])
    if "observer" in found:
        found["observer"] = observe(found["observer"])
    return found
