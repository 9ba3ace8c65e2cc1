"""Problems, plans and curves as Python values. Fields have the names of the files
(docs/formats.md).

All are immutable; dataclasses.replace() makes a changed one. Sizes are bytes, times nanoseconds.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from . import _core
from ._html import curve_html, fields_html
from ._records import decode, encode
from .errors import InputError

D = TypeVar("D", bound="Document")
Path = str | os.PathLike[str]


class Document:
    """What has a file form."""

    FORMAT: ClassVar[str] = ""
    # As it was read. Plans name their problem by the hash of this text.
    _text: str = ""

    @classmethod
    def from_json(cls: type[D], text: str, name: str = "<text>") -> D:
        """Reads the JSON form strictly. InputError with file, JSON pointer and line."""
        value: D = decode(cls, json.loads(_core.normalize(cls.FORMAT, text, name)))
        object.__setattr__(value, "_text", text)
        return value

    @classmethod
    def from_dict(cls: type[D], value: dict[str, Any]) -> D:
        return cls.from_json(dumps(value), "<dict>")

    @classmethod
    def load(cls: type[D], path: Path) -> D:
        return cls.from_json(_core.read_file(os.fspath(path)), os.fspath(path))

    def to_dict(self) -> dict[str, Any]:
        result: dict[str, Any] = encode(self)
        return result

    def to_json(self) -> str:
        """The JSON form, checked: InputError if this is no legal value."""
        return _core.normalize(self.FORMAT, self.text(), "<object>")

    def save(self, path: Path) -> None:
        """Writes a whole file or leaves the old one as it is."""
        _core.write_file(os.fspath(path), self.to_json())

    def text(self) -> str:
        """JSON: as it was read, if it was."""
        return self._text or dumps(self.to_dict())

    def _repr_html_(self) -> str:
        return fields_html(self)


def dumps(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"this is not a JSON value: {error}") from error


@dataclass(frozen=True)
class Cost:
    """Of one run: its time, and the bytes that it needs beyond what it reads and writes."""

    ns: int
    workspace_bytes: int = 0


@dataclass(frozen=True)
class StageOption:
    """One way to run a stage so that its backward can follow; the first is plain training's."""

    name: str
    saved_bytes: int
    forward: Cost
    backward: Cost
    reads_input: bool = True
    reads_output: bool = True
    consumes: bool = False
    consumes_input: bool = False
    exactness: str = "bitwise"


@dataclass(frozen=True)
class Stage:
    name: str
    output_bytes: int
    forward: Cost  # keeps nothing for the backward
    options: tuple[StageOption, ...]
    output_gradient_bytes: int | None = None  # None: as large as the output
    weight_gradient_bytes: int = 0
    random: bool = False


@dataclass(frozen=True)
class ChainInput:
    bytes: int
    gradient_bytes: int = 0


@dataclass(frozen=True)
class ChainLoss:
    ns: int = 0
    workspace_bytes: int = 0
    consumes: bool = False


@dataclass(frozen=True)
class Chain(Document):
    """A chain of stages."""

    FORMAT: ClassVar[str] = "reprise.chain"
    name: str
    input: ChainInput
    stages: tuple[Stage, ...]
    fixed_bytes: int = 0
    loss: ChainLoss = ChainLoss()

    def lower(self) -> Graph:
        """The same problem as a graph."""
        return Graph.from_json(_core.lower(self.text(), "<chain>"))

    def __repr__(self) -> str:
        return f"Chain({self.name!r}, {len(self.stages)} stages)"


@dataclass(frozen=True)
class Value:
    id: str
    bytes: int
    kind: str = "activation"


@dataclass(frozen=True)
class Variant:
    """One way to run an operation."""

    ns: int
    name: str = "default"
    workspace_bytes: int = 0
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    reuses: tuple[tuple[str, ...], ...] = ()  # (written, read)
    consumes: tuple[str, ...] = ()
    role: str = "any"
    exactness: str = "bitwise"


@dataclass(frozen=True)
class Op:
    id: str
    variants: tuple[Variant, ...]
    phase: str = "forward"
    once: bool = False
    random: bool = False


@dataclass(frozen=True)
class Choice:
    id: str
    realizations: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Graph(Document):
    """Operations over values, in the order of plain training."""

    FORMAT: ClassVar[str] = "reprise.graph"
    name: str
    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    results: tuple[str, ...]
    fixed_bytes: int = 0
    choices: tuple[Choice, ...] = ()

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {len(self.ops)} ops, {len(self.values)} values)"


@dataclass(frozen=True)
class ProblemId:
    """Which problem a plan is for."""

    format: str
    name: str
    sha256: str | None = None


@dataclass(frozen=True)
class Baseline:
    """Plain training."""

    peak_bytes: int
    time_ns: int


@dataclass(frozen=True)
class PlanSearch:
    wall_ms: int
    memory_bytes: int


class Action(NamedTuple):
    """("run", op, variant) or ("free", value)."""

    kind: str
    id: str
    variant: str = ""


@dataclass(frozen=True)
class Plan(Document):
    """What runs when, and what its planner claims about it."""

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

    def __repr__(self) -> str:
        return (
            f"Plan({self.problem.name!r}, {self.termination}, {len(self.actions)} actions, peak "
            f"{_core.format_bytes(self.peak_bytes)}, time {_core.format_duration(self.time_ns)})"
        )


@dataclass(frozen=True)
class FrontierPoint:
    budget_bytes: int
    peak_bytes: int
    time_ns: int
    lower_bound_ns: int


@dataclass(frozen=True)
class Svg:
    """A picture that notebooks show."""

    text: str

    def save(self, path: Path) -> None:
        _core.write_file(os.fspath(path), self.text)

    def _repr_svg_(self) -> str:
        return self.text


@dataclass(frozen=True)
class Frontier(Document):
    """The best time of every budget: budgets ascend, times descend."""

    FORMAT: ClassVar[str] = "reprise.frontier"
    problem: ProblemId
    planner: str
    points: tuple[FrontierPoint, ...]
    schedule_class: str | None = None
    # Plain training of the problem; not in the file.
    baseline: Baseline | None = field(default=None, compare=False, metadata={"file": False})

    def time_ns(self, budget: int | str) -> int | None:
        """The best time within a budget; None where there is no plan."""
        peak = self.baseline.peak_bytes if self.baseline else None
        limit = _core.resolve_budget(budget, peak)
        best = [point.time_ns for point in self.points if point.budget_bytes <= limit]
        return best[-1] if best else None

    def svg(self, marks: tuple[int | str, ...] = (), title: str = "") -> Svg:
        """A picture of the curve. `marks`: budgets to point out."""
        plain = self.baseline or Baseline(self.points[-1].peak_bytes, self.points[-1].time_ns)
        budgets = [_core.resolve_budget(mark, plain.peak_bytes) for mark in marks]
        return Svg(
            _core.frontier_svg(self.to_json(), plain.peak_bytes, plain.time_ns, budgets, title)
        )

    def plot(self, ax: Any = None) -> Any:
        """Draws the curve with matplotlib (into `ax`) and returns the axes; where matplotlib is not
        installed, an Svg."""
        try:
            import matplotlib.pyplot as plt
        except ImportError:
            return self.svg()
        if ax is None:
            ax = plt.subplots()[1]
        budgets = [point.budget_bytes / 2**20 for point in self.points]
        times = [point.time_ns / 1e6 for point in self.points]
        ax.step(budgets, times, where="post", label=self.planner)
        if self.baseline is not None:
            plain = self.baseline
            ax.plot(plain.peak_bytes / 2**20, plain.time_ns / 1e6, "o", label="plain training")
        ax.set_xlabel("budget (MiB)")
        ax.set_ylabel("time of a step (ms)")
        ax.set_title(self.problem.name)
        ax.legend()
        return ax

    def __repr__(self) -> str:
        return f"Frontier({self.problem.name!r}, {len(self.points)} points)"

    def _repr_html_(self) -> str:
        return curve_html(self.svg().text if self.points else "", self)


@dataclass(frozen=True)
class TimeSpread:
    op: str
    variant: str
    repeats: int
    min_ns: int
    median_ns: int
    max_ns: int


@dataclass(frozen=True)
class Profile(Document):
    """A measured problem, with how it was measured."""

    FORMAT: ClassVar[str] = "reprise.profile"
    problem: Chain | Graph
    device: str
    versions: dict[str, str]
    threads: int
    inputs: tuple[str, ...]
    signature: str
    spread: tuple[TimeSpread, ...]

    def __repr__(self) -> str:
        return f"Profile({self.problem!r}, measured on {self.device})"


@dataclass(frozen=True)
class StepCost:
    peak_bytes: int
    time_ns: int


@dataclass(frozen=True)
class RunLogEntry:
    """One run: the most device bytes while it ran, and its time, beside what was planned."""

    action: int
    op: str
    variant: str
    planned_bytes: int
    measured_bytes: int
    planned_ns: int
    measured_ns: int


@dataclass(frozen=True)
class RunLog(Document):
    """What the runs of a plan's step took: medians of times over `steps` steps."""

    FORMAT: ClassVar[str] = "reprise.runlog"
    problem: ProblemId
    device: str
    steps: int
    planned: StepCost
    measured: StepCost
    actions: tuple[RunLogEntry, ...]

    def __repr__(self) -> str:
        return f"RunLog({len(self.actions)} runs, {self.steps} steps on {self.device})"


DOCUMENTS: dict[str, type[Document]] = {
    kind.FORMAT: kind for kind in (Chain, Graph, Plan, Frontier, Profile, RunLog)
}


def load(path: Path) -> Any:
    """Reads a chain, graph, profile, plan, frontier or run log file, told apart by "format"."""
    name = os.fspath(path)
    text = _core.read_file(name)
    try:
        found = json.loads(text)
        kind = DOCUMENTS.get(found.get("format", "")) if isinstance(found, dict) else None
    except ValueError:
        kind = None
    # Without a known format: as a chain, for the strict reader's message.
    return (kind or Chain).from_json(text, name)
