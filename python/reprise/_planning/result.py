"""The answer of a planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import _core
from .html import fields_html
from .plan import Baseline, Plan


@dataclass(frozen=True)
class SearchCost:
    """The cost of a search.

    Attributes:
        wall_ns: The time of the search in nanoseconds.
        memory_bytes: The bytes of the search's own tables.
    """

    wall_ns: int
    memory_bytes: int


@dataclass(frozen=True)
class PlanResult:
    """The answer of a planner. An infeasible budget is an answer, too.

    Attributes:
        termination: "optimal" or "feasible" if there is a plan, else "infeasible" or "time_limit".
        plan: The plan, or None if there is none. It was verified.
        planner: The name of the planner.
        schedule_class: The set of schedules that the lower bound and "optimal" speak of.
        budget_bytes: The budget in bytes, or None for no limit.
        lower_bound_ns: A time in nanoseconds that no plan of the class can beat within the budget.
        baseline: The cost of plain training.
        smallest_budget_bytes: If there is no plan, the smallest budget that has one, as far as the
            planner knows; else None.
        blocking_op: If the budget is infeasible, the op that needs the smallest budget.
        search: The cost of the search.
    """

    termination: str
    plan: Plan | None
    planner: str
    schedule_class: str
    budget_bytes: int | None
    lower_bound_ns: int
    baseline: Baseline
    smallest_budget_bytes: int | None
    blocking_op: str
    search: SearchCost

    @property
    def gap(self) -> float | None:
        """The distance of the plan's time from the lower bound, as a share of the plan's time.

        The gap is None if there is no plan.
        """
        if self.plan is None:
            return None
        time = self.plan.time_ns
        return 0.0 if time == 0 else (time - self.lower_bound_ns) / time

    def __repr__(self) -> str:
        if self.plan is None:
            known = self.smallest_budget_bytes
            smallest = "" if known is None else f", smallest budget {known} bytes"
            return f"PlanResult({self.termination}{smallest})"
        plan, plain = self.plan, self.baseline
        share = 100 * plan.peak_bytes / plain.peak_bytes if plain.peak_bytes else 100.0
        slower = 100 * plan.time_ns / plain.time_ns - 100 if plain.time_ns else 0.0
        return (
            f"PlanResult({self.termination}, peak {_core.format_bytes(plan.peak_bytes)} "
            f"({share:.1f} % of plain), time {_core.format_duration(plan.time_ns)} "
            f"({slower:+.1f} %))"
        )

    def _repr_html_(self) -> str:
        return fields_html(self)


def result_of(found: dict[str, Any]) -> PlanResult:
    """Returns the result from the dict that the extensions make (`dict_of()` in C++)."""
    text = found.pop("plan")
    plan = Plan.from_json(text) if text is not None else None
    found["baseline"] = Baseline(*found["baseline"])
    found["search"] = SearchCost(*found["search"])
    return PlanResult(plan=plan, **found)
