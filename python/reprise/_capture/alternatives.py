"""The kinds of alternatives from which the planner may choose."""

from __future__ import annotations

from typing import NamedTuple

from .._torch import _runtime


class Alternative(NamedTuple):
    """A kind of alternative: another way to run parts of a step with less memory or less time.

    Attributes:
        name: The name of the kind, for the argument `alternatives`.
        description: A line for people.
        exactness: The distance from plain training's result: "bitwise", "rounding" or
            "approximate".
        in_graph: Whether it is for ops of a captured step: `capture()`.
        in_chain: Whether it is for stages: `remat()` and `profile()`.
    """

    name: str
    description: str
    exactness: str
    in_graph: bool
    in_chain: bool


class ApproximateValue(NamedTuple):
    """A value that the plan of a captured step keeps in few bits for the backward.

    Attributes:
        op: The id of the op that decodes the value.
        alternative: The kind of alternative, such as "compressed-8".
        plain_bytes: The bytes of the value.
        kept_bytes: The bytes of what is kept in its place.
        bound: The codec's word for the last call: no element is off by more. NaN if a number was
            not finite.
        largest: The largest absolute value of an element in the last call.
        error: The largest error that was found in the last call, or None if nothing was compared.
    """

    op: str
    alternative: str
    plain_bytes: int
    kept_bytes: int
    bound: float
    largest: float
    error: float | None


def alternatives() -> list[Alternative]:
    """Returns all kinds of alternatives.

    Examples:
        >>> exact = [kind.name for kind in reprise.alternatives() if kind.exactness == "bitwise"]
    """
    return [Alternative(*row) for row in _runtime.alternatives()]
