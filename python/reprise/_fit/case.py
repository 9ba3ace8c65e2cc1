"""The ways to run a step, as problems for the planner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .._planning.result import PlanResult
from .rows import FitBatch

USED_UP = "gradients used up"
STATE_ON_HOST = "optimizer's state on the host"


@dataclass
class Case:
    """A way to run a step with so many rows, as a problem for the planner.

    Attributes:
        switch_on: The things to switch on beside a plan, in words.
        problem: The problem.
        extra_ns: The time that a step takes beside the problem, once.
        floor_bytes: The most bytes that are held outside of the problem.
        smallest: The smallest budget of the problem.
        baseline_ns: The time of the problem without a budget.
        baseline_peak: The peak of the problem without recomputation.
        planned: The answers of the planner, by budget.
    """

    switch_on: tuple[str, ...]
    problem: Any
    extra_ns: int = 0
    floor_bytes: int = 0
    smallest: int = 0
    baseline_ns: int = 0
    baseline_peak: int = 0
    planned: dict[int, PlanResult] = field(default_factory=dict)


@dataclass
class Cases:
    """All ways to run a step with one batch.

    Attributes:
        plain: Plain training, as it is.
        whole: The ways that take the whole batch at once.
        part: The way in which these rows are one part of a larger batch, or None.
    """

    plain: FitBatch
    whole: list[Case]
    part: Case | None = None
