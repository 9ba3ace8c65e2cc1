"""Planning, checking and curves, on files, dicts and Python values."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import _core
from ._html import fields_html
from ._model import (
    Baseline,
    Chain,
    Document,
    Frontier,
    Graph,
    Path,
    Plan,
    Profile,
    RunLog,
    dumps,
)
from ._records import decode
from .errors import InputError

# A problem: a file, its JSON form as a dict, or a value.
Problem = Path | dict[str, Any] | Chain | Graph | Profile
PlanLike = Path | dict[str, Any] | Plan
Budget = int | str | None


class Progress(NamedTuple):
    """How far work is."""

    task: str  # "plan", "profile", ...
    fraction: float | None  # done, in 0..1; None when unknown
    message: str


Observer = Callable[[Progress], None]


@dataclass(frozen=True)
class SearchCost:
    wall_ns: int
    memory_bytes: int


@dataclass(frozen=True)
class PlanResult:
    """What planning found. `termination` is "optimal", "feasible", "infeasible" or "time_limit";
    with the first two there is a plan."""

    termination: str
    plan: Plan | None
    planner: str
    schedule_class: str  # what the bound and "optimal" refer to
    budget_bytes: int | None  # None: no limit
    lower_bound_ns: int  # on the time of every plan of the class within the budget
    baseline: Baseline  # plain training
    smallest_budget_bytes: int | None  # no plan: the smallest budget with one, as far as known
    blocking_op: str  # infeasible: the op that needs it
    search: SearchCost

    @property
    def gap(self) -> float | None:
        """How far above the lower bound the plan may be, as a share of its time."""
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


class TimelineStep(NamedTuple):
    """Of one action: device bytes while it runs and after it, start and duration."""

    during_bytes: int
    after_bytes: int
    start_ns: int
    time_ns: int


@dataclass(frozen=True)
class Timeline:
    """What a plan costs, action by action."""

    steps: tuple[TimelineStep, ...]
    initial_bytes: int
    peak_bytes: int
    peak_action: int  # the first that reaches the peak; -1: the initial level does
    time_ns: int

    def __repr__(self) -> str:
        return f"Timeline({len(self.steps)} actions, peak {_core.format_bytes(self.peak_bytes)})"

    def _repr_html_(self) -> str:
        return fields_html(self)


@dataclass(frozen=True)
class Violation:
    """A rule that a plan breaks."""

    kind: str  # "over budget", "not live", ...
    action: int  # position in Plan.actions; -1: the plan as a whole
    id: str
    over_bytes: int
    message: str


@dataclass(frozen=True)
class Holder:
    id: str
    bytes: int


@dataclass(frozen=True)
class Recomputed:
    op: str
    runs: int
    extra_ns: int


@dataclass(frozen=True)
class AlternativeUse:
    """What runs in place of plain training's way, by kind."""

    kind: str
    runs: int
    time_ns: int
    plain_time_ns: int  # of plain training's way to do the same
    saved_bytes: int  # the largest difference in what an operation needs


@dataclass(frozen=True)
class Explanation:
    """Who holds the bytes at the peak of a plan, what it recomputes, and what that costs. str() is
    the table for people."""

    peak_bytes: int
    peak_position: int
    peak_action: str
    time_ns: int
    baseline: Baseline
    holders: tuple[Holder, ...]  # at the peak, largest first; they sum to the peak
    recomputed_ns: int
    recomputed: tuple[Recomputed, ...]  # most expensive first
    alternatives: tuple[AlternativeUse, ...] = ()
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


@dataclass(frozen=True)
class Planner:
    name: str
    summary: str
    schedule_class: str
    source: str
    chains: bool
    graphs: bool
    chain_frontier: bool
    graph_frontier: bool


def text_of(value: Any, kind: str) -> tuple[str, str]:
    """A problem or plan as JSON, and what to call it in messages."""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        return _core.read_file(path), path
    if isinstance(value, dict):
        return dumps(value), "<dict>"
    if isinstance(value, Document):
        return value.text(), f"<{type(value).__name__}>"
    if kind == "plan" and value is None:
        raise InputError(
            "there is no plan: where no budget fits, PlanResult.plan is None, and "
            "smallest_budget_bytes says what is possible"
        )
    hint = "; of a model, give a sample, too" if kind == "problem" and callable(value) else ""
    raise InputError(
        f"a {kind} is a path, a dict or a value of this package, not a {type(value).__name__}{hint}"
    )


def nanoseconds(time_limit: float | str) -> int:
    if isinstance(time_limit, str):
        return _core.parse_duration(time_limit)
    if not 0 <= time_limit < 9e9:
        raise InputError(f"a time limit is a number of seconds from 0 to 9e9, not {time_limit!r}")
    return int(time_limit * 1e9)


def observe(observer: Observer | None) -> Callable[[str, float, str], None] | None:
    """The callback that the core calls."""
    if observer is None:
        return None

    def call(task: str, fraction: float, message: str) -> None:
        observer(Progress(task, None if fraction < 0 else fraction, message))

    return call


def options(
    planner: str,
    schedule_class: str,
    time_limit: float | str,
    threads: int,
    allow: str,
    observer: Observer | None,
) -> dict[str, Any]:
    return {
        "planner": planner,
        "schedule_class": schedule_class,
        "time_limit_ns": nanoseconds(time_limit),
        "threads": threads,
        "allow": allow,
        "observer": observe(observer),
    }


def checked(budget: Any) -> Budget:
    """InputError unless it can be a budget; what a text says is looked at later."""
    if budget is None or isinstance(budget, str):
        return budget
    if hasattr(budget, "__index__") and not isinstance(budget, bool):
        number = operator.index(budget)  # of NumPy's, too
        if abs(number) < 2**63:
            return number
    share = ""
    if isinstance(budget, float) and 0 < budget <= 1:
        share = f'; for a share of plain training\'s peak write "{100 * budget:g}%"'
    raise InputError(
        'a budget is a number of bytes as an int, a text such as "8 GiB" or "60%", or None for no '
        f"limit, not the {type(budget).__name__} {budget!r}{share}"
    )


def result_of(found: dict[str, Any]) -> PlanResult:
    """A PlanResult from what the extensions return."""
    text = found.pop("plan")
    plan = Plan.from_json(text) if text is not None else None
    found["baseline"] = Baseline(*found["baseline"])
    found["search"] = SearchCost(*found["search"])
    return PlanResult(plan=plan, **found)


def plan(
    problem: Problem,
    *,
    budget: Budget = None,
    planner: str = "",
    schedule_class: str = "",
    time_limit: float | str = 10.0,
    threads: int = 0,
    allow: str = "bitwise",
    observer: Observer | None = None,
) -> PlanResult:
    """The fastest plan within a budget.

    `budget`: bytes, "700 MiB", "60%" of plain training's peak, or None for no limit. `planner`: a
    name of planners(); "" is "chain" for chains and "graph" for graphs. `time_limit`: seconds or
    "10s". `threads`: 0 is as many as the machine has. `allow`: the least exact variant that may be
    used. `observer` is called with Progress; Ctrl-C stops the search.

    An infeasible budget is an answer, not an error.
    """
    text, name = text_of(problem, "problem")
    chosen = options(planner, schedule_class, time_limit, threads, allow, observer)
    return result_of(_core.plan(text, name, checked(budget), **chosen))


def frontier(
    problem: Any,
    sample: Any = None,
    *,
    planner: str = "",
    schedule_class: str = "",
    time_limit: float | str = 60.0,
    threads: int = 0,
    allow: str = "bitwise",
    observer: Observer | None = None,
    loss: Any = None,
) -> Frontier:
    """The best time of every budget.

    Of a problem; or, with `sample` inputs, of a model: an nn.Sequential or a list of stages, as
    remat() takes it, which is measured first (`loss` as there).
    """
    if sample is not None:
        from ._remat import profile

        problem = profile(problem, sample, loss=loss, observer=observer)
    elif loss is not None:
        raise InputError("`loss` belongs to a model, which needs a `sample` input")
    text, name = text_of(problem, "problem")
    chosen = options(planner, schedule_class, time_limit, threads, allow, observer)
    found, baseline = _core.frontier(text, name, **chosen)
    curve: Frontier = decode(Frontier, json.loads(found))
    object.__setattr__(curve, "baseline", Baseline(*baseline))
    return curve


def verify(problem: Problem, plan: PlanLike, budget: Budget = None) -> list[Violation]:
    """All rules that the plan breaks; none for a valid one. `budget`: default is the plan's own."""
    texts = (*text_of(problem, "problem"), *text_of(plan, "plan"))
    found = json.loads(_core.verify(*texts, checked(budget)))
    return [decode(Violation, violation) for violation in found["violations"]]


def simulate(problem: Problem, plan: PlanLike) -> Timeline:
    """What the plan costs, action by action. InputError for a plan that cannot be walked."""
    steps, *rest = _core.simulate(*text_of(problem, "problem"), *text_of(plan, "plan"))
    return Timeline(tuple(TimelineStep(*step) for step in steps), *rest)


def explain(problem: Problem, plan: PlanLike) -> Explanation:
    """Who holds the bytes at the peak, what is recomputed, and what that costs."""
    found, text = _core.explain(*text_of(problem, "problem"), *text_of(plan, "plan"))
    explanation: Explanation = decode(Explanation, json.loads(found) | {"text": text})
    return explanation


def report_html(
    problem: Problem,
    plan: PlanLike,
    *,
    run_log: RunLog | None = None,
    path: Path | None = None,
    time_limit: float | str = 3.0,
) -> str:
    """A plan as one self-contained page (HTML): memory over the step beside plain training, what
    runs when, what is recomputed and why, where each block stands; with a run log what was measured
    beside what was planned. Written to `path`, too, if there is one. `time_limit`: for the curve
    over all budgets of a chain; 0: none."""
    measured = None if run_log is None else run_log.text()
    page = _core.report_html(
        *text_of(problem, "problem"),
        *text_of(plan, "plan"),
        measured,
        "run log",
        nanoseconds(time_limit),
    )
    if path is not None:
        _core.write_file(os.fspath(path), page)
    return page


def planners() -> list[Planner]:
    """The planners there are."""
    return [decode(Planner, row) for row in json.loads(_core.planners())]
