"""Planning: the fastest plan for a problem and a budget, and the list of planners."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .. import _core
from .arguments import Budget, Observer, checked_budget, native_options, options_of
from .problems import MachineLike, Problem, text_of
from .records import decode
from .result import PlanResult, result_of


def plan(
    problem: Problem,
    *,
    budget: Budget = None,
    planner: str = "",
    schedule_class: str = "",
    slots: int = 0,
    time_limit: float | str = 10.0,
    threads: int = 0,
    allow: str = "bitwise",
    machine: MachineLike | None = None,
    observer: Observer | None = None,
) -> PlanResult:
    """Finds the fastest plan within a budget. Ctrl-C stops the search.

    Args:
        problem: A path, a dict in the file format (also of a join), or a `Chain`, `Graph` or
            `Profile`.
        budget: Bytes, a text such as "700 MiB", a share such as "60%" of plain training's peak, or
            None for no limit.
        planner: The name of a planner of `planners()`. An empty name stands for "chain" if the
            problem is a chain, and for "graph" if it is a graph. With a `machine` it stands for
            "levels" and "graph_levels", or "devices" for a graph whose variants name devices.
        schedule_class: The set of schedules to search, for planners that have several. An empty
            name stands for the largest one that the time limit allows.
        slots: The number of slots that the planner "chain_slots" divides the memory into. 0 lets
            the planner choose. Other planners have no slots.
        time_limit: Seconds, or a text such as "10s".
        threads: The number of threads. 0 stands for as many as the machine has.
        allow: The least exact options and variants that the plan may use: "bitwise", "rounding" or
            "approximate".
        machine: The memories that values may move to: the path of a `reprise.machine` file, a dict
            in its form, or what `parse_offload()` returns. None stands for the device alone.
        observer: A function that is called with `Progress`. If it raises, the search stops.

    Returns:
        The answer. A budget that no plan fits is an answer, too: its `termination` is "infeasible".

    Raises:
        InputError: The problem, the budget or another argument is wrong.

    Examples:
        >>> result = reprise.plan(chain, budget="60%")
        >>> print(result.plan.peak_bytes <= result.budget_bytes)
        True
    """
    text, name = text_of(problem, "problem")
    options = options_of(plan, locals()) | {"budget": checked_budget(budget)}
    return result_of(_core.plan(text, name, **native_options(options)))


@dataclass(frozen=True)
class Planner:
    """A planner and what it can do.

    Attributes:
        name: The name, for the argument `planner` of `plan()`.
        summary: A line for people.
        schedule_class: The set of schedules that its optimum and its lower bound speak of.
        source: The paper that the planner follows.
        chains: Whether it plans chains.
        graphs: Whether it plans graphs.
        joins: Whether it plans joins itself. A planner of graphs takes a join as a graph.
        chain_frontier: Whether it has a search of its own for the frontier of a chain.
        graph_frontier: Whether it has a search of its own for the frontier of a graph.
    """

    name: str
    summary: str
    schedule_class: str
    source: str
    chains: bool
    graphs: bool
    joins: bool
    chain_frontier: bool
    graph_frontier: bool


def planners() -> list[Planner]:
    """Returns all planners.

    Examples:
        >>> names = [planner.name for planner in reprise.planners()]
    """
    return [decode(Planner, row) for row in json.loads(_core.planners())]
