"""Measured values: the profile of a problem, and the log of a plan's runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .chain import Chain
from .document import Document
from .graph import Graph
from .plan import ProblemId


@dataclass(frozen=True)
class TimeSpread:
    """The spread of repeated measurements of one time, by the wall clock. All times are in
    nanoseconds.

    On a quiet machine the problem has the median as the time of the op. Exceptions are ops that
    share the time of their equals.

    Attributes:
        op: The id of the op. A chain's ops are called "F0", "loss", "B0" and so on.
        variant: The variant of the op.
        repeats: The number of measurements.
        min_ns: The least time.
        median_ns: The median.
        max_ns: The largest time.
    """

    op: str
    variant: str
    repeats: int
    min_ns: int
    median_ns: int
    max_ns: int


@dataclass(frozen=True)
class Profile(Document):
    """A measured problem, and how it was measured.

    Attributes:
        problem: The problem. Its sizes and times were measured.
        device: The device, for example "cpu".
        versions: The versions of the software by name, for example of "torch".
        threads: The number of threads within operations.
        inputs: The type and shape of each input tensor, for example "float32[64, 1, 28, 28]".
        signature: A text that changes when the model changes so that a plan would no longer fit.
        spread: The spread of each time that was measured.
        processor_percent: The share of the time in which the threads of the measurement had a
            processor when they needed one. It is 100 on a machine that was not busy.
    """

    FORMAT: ClassVar[str] = "reprise.profile"
    VERSION: ClassVar[int] = 2
    problem: Chain | Graph
    device: str
    versions: dict[str, str]
    threads: int
    inputs: tuple[str, ...]
    signature: str
    spread: tuple[TimeSpread, ...]
    processor_percent: int = 100

    def __repr__(self) -> str:
        return f"Profile({self.problem!r}, measured on {self.device})"


@dataclass(frozen=True)
class StepCost:
    """The cost of a whole step.

    Attributes:
        peak_bytes: The most bytes that are held at one time.
        time_ns: The time in nanoseconds.
    """

    peak_bytes: int
    time_ns: int


@dataclass(frozen=True)
class RunLogEntry:
    """One run of an op: what was planned, and what was measured.

    Attributes:
        action: The position of the run in `Plan.actions`.
        op: The id of the op.
        variant: The variant of the op.
        planned_bytes: The bytes that the plan holds while the op runs, fixed bytes included.
        measured_bytes: The most bytes that were held while the op ran.
        planned_ns: The planned time in nanoseconds.
        measured_ns: The measured time in nanoseconds.
    """

    action: int
    op: str
    variant: str
    planned_bytes: int
    measured_bytes: int
    planned_ns: int
    measured_ns: int


@dataclass(frozen=True)
class RunLog(Document):
    """The measured times and bytes of the runs of a plan.

    Attributes:
        problem: The problem that the plan is for.
        device: The device, for example "cpu".
        steps: The number of measured steps. Times are their medians, and bytes are their largest.
        planned: The planned cost of the step.
        measured: The measured cost of the step. Its time includes what lies between the runs.
        actions: One entry for each run that was measured, in the order of the plan.
    """

    FORMAT: ClassVar[str] = "reprise.runlog"
    problem: ProblemId
    device: str
    steps: int
    planned: StepCost
    measured: StepCost
    actions: tuple[RunLogEntry, ...]

    def __repr__(self) -> str:
        return f"RunLog({len(self.actions)} runs, {self.steps} steps on {self.device})"
