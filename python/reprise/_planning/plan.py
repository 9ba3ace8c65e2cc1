"""Plans: what runs when in one training step, and what that costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from .. import _core
from .document import Document


@dataclass(frozen=True)
class ProblemId:
    """The problem that a plan is for.

    Attributes:
        format: "reprise.chain" or "reprise.graph".
        name: The name of the problem.
        sha256: The hash of the problem's canonical JSON (docs/formats.md), or None if it is
            unknown.
    """

    format: str
    name: str
    sha256: str | None = None


@dataclass(frozen=True)
class Baseline:
    """The cost of plain training.

    Attributes:
        peak_bytes: The most bytes that plain training holds at one time.
        time_ns: The time of one step in nanoseconds.
    """

    peak_bytes: int
    time_ns: int


@dataclass(frozen=True)
class PlanSearch:
    """The cost of the search for a plan.

    Attributes:
        wall_ms: The time of the search in whole milliseconds.
        memory_bytes: The bytes of the search's own tables.
    """

    wall_ms: int
    memory_bytes: int


@dataclass(frozen=True)
class MachineId:
    """The machine of a plan that moves values.

    Attributes:
        sha256: The hash of the machine's JSON form (docs/formats.md).
    """

    sha256: str


class Action(NamedTuple):
    """One entry of a plan.

    It is ("run", op, variant) or ("free", value). In a plan for several memories it is also
    ("free", value, memory), ("copy", value, from, to), ("wait", value, memory),
    ("send", value, from, to) or ("receive", value, from, to).

    Attributes:
        kind: "run", "free", "copy", "wait", "send" or "receive".
        id: The id of the op that runs, or of the value.
        variant: The variant of the op. For other kinds it is the memory: the one that a copy or a
            message reads, and that of a free or a wait. It is empty for a free on the device.
        to: The memory that a copy or a message writes, else an empty text.
    """

    kind: str
    id: str
    variant: str = ""
    to: str = ""


@dataclass(frozen=True)
class Plan(Document):
    """The list of actions of one step, with the claims of its planner. `verify()` checks them.

    Attributes:
        problem: The problem that the plan is for.
        planner: The name of the planner that made the plan.
        termination: "optimal" if the time equals the lower bound, else "feasible".
        schedule_class: The set of schedules that the lower bound speaks of.
        budget_bytes: The budget that the plan was made for.
        peak_bytes: The most bytes that the plan holds at one time.
        time_ns: The time of the step in nanoseconds.
        lower_bound_ns: A time in nanoseconds that no plan of the class can beat within the budget.
        baseline: The cost of plain training.
        actions: The actions in their order.
        search: The cost of the search, or None if it is unknown.
        machine: The hash of the machine that the plan moves values on, or None.
    """

    FORMAT: ClassVar[str] = "reprise.plan"
    problem: ProblemId
    planner: str
    termination: str
    schedule_class: str
    budget_bytes: int
    peak_bytes: int
    time_ns: int
    lower_bound_ns: int
    baseline: Baseline
    actions: tuple[Action, ...]
    search: PlanSearch | None = None
    machine: MachineId | None = None

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form as a dict, without checking it."""
        result = super().to_dict()
        if self.machine is not None:  # Older programs read a plan that moves nothing.
            result["version"] = 2
        return result

    def __repr__(self) -> str:
        return (
            f"Plan({self.problem.name!r}, {self.termination}, {len(self.actions)} actions, peak "
            f"{_core.format_bytes(self.peak_bytes)}, time {_core.format_duration(self.time_ns)})"
        )
