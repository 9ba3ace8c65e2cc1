"""Explanations of plans: who holds the bytes at the peak, and which ops are recomputed."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .. import _core
from .html import fields_html
from .plan import Baseline
from .problems import MachineLike, PlanLike, Problem, machine_text, text_of
from .records import decode


@dataclass(frozen=True)
class Holder:
    """Something that holds bytes at the peak.

    Attributes:
        id: The id of a value, "fixed", or "workspace of" an op.
        bytes: The bytes that it holds.
    """

    id: str
    bytes: int


@dataclass(frozen=True)
class Recomputed:
    """An op that runs more than once.

    Attributes:
        op: The id of the op.
        runs: The number of its runs.
        extra_ns: The time of all runs but the first in nanoseconds.
        bytes: The bytes of the values that the runs but the first write.
        absent_bytes: The bytes of these values that the device does not hold at the peak, because
            a run behind the peak makes them again.
        reader: The id of the op that is the first to read what was made again, or "".
    """

    op: str
    runs: int
    extra_ns: int
    bytes: int = 0
    absent_bytes: int = 0
    reader: str = ""


@dataclass(frozen=True)
class AlternativeUse:
    """The use that a plan makes of one kind of alternative.

    Attributes:
        kind: The kind of alternative.
        runs: The number of ops, choices or stages that are done this way.
        time_ns: The time of all of them in nanoseconds.
        plain_time_ns: The time that plain training takes for the same work in nanoseconds.
        saved_bytes: The largest difference in the bytes that an op needs or a stage keeps.
        error_ppm: The largest `Variant.error_ppm` of what runs; 0 where nothing is approximate.
    """

    kind: str
    runs: int
    time_ns: int
    plain_time_ns: int
    saved_bytes: int
    error_ppm: int = 0


@dataclass(frozen=True)
class Explanation:
    """An account of a plan: the holders of bytes at its peak, and the ops that it recomputes.

    `str()` of an explanation is a table for people.

    Attributes:
        peak_bytes: The most bytes that the plan holds at one time.
        peak_position: The position of the action that reaches the peak, or -1 for the start.
        peak_action: The action at this position as a text, for example "run B3 keep", or "start".
        time_ns: The time of the step in nanoseconds.
        baseline: The cost of plain training.
        holders: The holders of bytes at the peak, largest first. Their bytes add up to the peak.
        recomputed_ns: The time of all runs of ops but their first in nanoseconds.
        recomputed: The ops that run more than once, most expensive first.
        alternatives: The uses of alternatives, by kind.
        loss_bytes: The most bytes while the loss runs, or None for a problem without a loss.
        text: The table for people.
    """

    peak_bytes: int
    peak_position: int
    peak_action: str
    time_ns: int
    baseline: Baseline
    holders: tuple[Holder, ...]
    recomputed_ns: int
    recomputed: tuple[Recomputed, ...]
    alternatives: tuple[AlternativeUse, ...] = ()
    loss_bytes: int | None = None
    text: str = ""

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return (
            f"Explanation(peak {_core.format_bytes(self.peak_bytes)} at {self.peak_action!r}, "
            f"{len(self.recomputed)} ops recomputed)"
        )

    def _repr_html_(self) -> str:
        return fields_html(self)


def explain(problem: Problem, plan: PlanLike, *, machine: MachineLike | None = None) -> Explanation:
    """Says who holds the bytes at the peak of a plan, what it recomputes, and what that costs.

    Args:
        problem: A path, a dict in the file format, or a `Chain`, `Graph` or `Profile`.
        plan: A path, a dict in the file format, or a `Plan`.
        machine: The machine of a plan that moves values: a path, or a dict in the file format.

    Raises:
        InputError: The problem, the plan or the machine cannot be read, or an action cannot run.

    Examples:
        >>> text = str(reprise.explain(chain, plan))
    """
    found, text = _core.explain(
        *text_of(problem, "problem"),
        *text_of(plan, "plan"),
        machine_text(machine),
    )
    explanation: Explanation = decode(Explanation, json.loads(found) | {"text": text})
    return explanation
