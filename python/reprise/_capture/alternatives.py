"""The kinds of alternatives from which the planner may choose."""

from __future__ import annotations

from typing import NamedTuple

from .._torch import _runtime


class Alternative(NamedTuple):
    """A kind of alternative: another way to run parts of a step with less memory or less time.

    Attributes:
        name: The name of the kind, for the argument `alternatives`.
        description: A line for people.
        exactness: The distance from plain training's result: "bitwise" or "rounding".
        in_graph: Whether it is for ops of a captured step: `capture()`.
        in_chain: Whether it is for stages: `remat()` and `profile()`.
    """

    name: str
    description: str
    exactness: str
    in_graph: bool
    in_chain: bool


def alternatives() -> list[Alternative]:
    """Returns all kinds of alternatives.

    Examples:
        >>> exact = [kind.name for kind in reprise.alternatives() if kind.exactness == "bitwise"]
    """
    return [Alternative(*row) for row in _runtime.alternatives()]
