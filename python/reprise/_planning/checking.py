"""Checking plans: the rules that a plan breaks, and what a plan costs action by action."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple

from .. import _core
from .arguments import Budget, checked_budget
from .html import fields_html
from .problems import MachineLike, PlanLike, Problem, machine_text, text_of
from .records import decode


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks.

    Attributes:
        kind: The rule, for example "over budget" or "not live".
        action: The position of the action in `Plan.actions`, or -1 for the plan as a whole.
        id: The op, the value or the claim.
        over_bytes: The bytes above the budget, or 0 if the rule is another one.
        message: A line for people.
    """

    kind: str
    action: int
    id: str
    over_bytes: int
    message: str


class TimelineStep(NamedTuple):
    """The cost of one action.

    Attributes:
        during_bytes: The device bytes that are held while the action runs, fixed bytes included.
        after_bytes: The device bytes that are held after the action.
        start_ns: The time since the start of the step in nanoseconds.
        time_ns: The time of the action in nanoseconds. It is 0 for a free.
    """

    during_bytes: int
    after_bytes: int
    start_ns: int
    time_ns: int


@dataclass(frozen=True)
class Timeline:
    """The cost of a plan, action by action.

    Attributes:
        steps: One entry for each action of the plan.
        initial_bytes: The bytes that are held before the first action.
        peak_bytes: The most bytes that are held at one time.
        peak_action: The first action that reaches the peak, or -1 if it is reached before the
            first action.
        time_ns: The time of the whole step in nanoseconds.
    """

    steps: tuple[TimelineStep, ...]
    initial_bytes: int
    peak_bytes: int
    peak_action: int
    time_ns: int

    def __repr__(self) -> str:
        return f"Timeline({len(self.steps)} actions, peak {_core.format_bytes(self.peak_bytes)})"

    def _repr_html_(self) -> str:
        return fields_html(self)


def verify(
    problem: Problem,
    plan: PlanLike,
    budget: Budget = None,
    *,
    machine: MachineLike | None = None,
) -> list[Violation]:
    """Finds all rules that a plan breaks. The verifier is independent of all planners.

    Args:
        problem: A path, a dict in the file format, or a `Chain`, `Graph` or `Profile`.
        plan: A path, a dict in the file format, or a `Plan`.
        budget: The budget to check, as for `plan()`. None stands for the plan's own budget.
        machine: The machine of a plan that moves values, as for `plan()`.

    Returns:
        The violations by action. The list is empty for a valid plan and ends at 10,000 entries.

    Raises:
        InputError: The problem, the plan, the budget or the machine cannot be read.

    Examples:
        >>> reprise.verify(chain, plan)
        []
    """
    texts = (*text_of(problem, "problem"), *text_of(plan, "plan"))
    found = json.loads(_core.verify(*texts, checked_budget(budget), machine_text(machine)))
    return [decode(Violation, violation) for violation in found["violations"]]


def simulate(problem: Problem, plan: PlanLike, *, machine: MachineLike | None = None) -> Timeline:
    """Works out what a plan costs, action by action.

    Args:
        problem: As for `verify()`.
        plan: As for `verify()`.
        machine: As for `verify()`.

    Raises:
        InputError: The problem, the plan or the machine cannot be read, or an action cannot run,
            because its id is unknown or a value that it needs is not live.

    Examples:
        >>> reprise.simulate(chain, plan).peak_bytes == plan.peak_bytes
        True
    """
    texts = (*text_of(problem, "problem"), *text_of(plan, "plan"))
    steps, *rest = _core.simulate(*texts, machine_text(machine))
    return Timeline(tuple(TimelineStep(*step) for step in steps), *rest)
