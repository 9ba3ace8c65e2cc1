"""Frontiers: the best time of every budget, as values and as pictures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .. import _core
from .document import Document, Path
from .html import fields_html
from .plan import Baseline, ProblemId


@dataclass(frozen=True)
class FrontierPoint:
    """One point of a frontier.

    Attributes:
        budget_bytes: The smallest budget at which the time is reached.
        peak_bytes: The most bytes that the plan of this point holds at one time.
        time_ns: The time of the step in nanoseconds.
        lower_bound_ns: A time in nanoseconds that no plan of the class can beat within this budget.
    """

    budget_bytes: int
    peak_bytes: int
    time_ns: int
    lower_bound_ns: int


@dataclass(frozen=True)
class Svg:
    """A picture, which notebooks show.

    Attributes:
        text: The picture as SVG.
    """

    text: str

    def save(self, path: Path) -> None:
        """Writes the picture to a file.

        Raises:
            InputError: The file cannot be written.
        """
        _core.write_file(os.fspath(path), self.text)

    def _repr_svg_(self) -> str:
        return self.text


@dataclass(frozen=True)
class Frontier(Document):
    """The best time of every budget.

    The best time for a budget is that of the last point whose budget is not larger. Below the first
    point the planner has no plan.

    Attributes:
        problem: The problem that the frontier is for.
        planner: The name of the planner.
        points: The points. Their budgets ascend, and their times descend strictly.
        schedule_class: The set of schedules that the lower bounds speak of, or None if unknown.
        baseline: The cost of plain training, or None if it is unknown. It is not in the file.
    """

    FORMAT: ClassVar[str] = "reprise.frontier"
    problem: ProblemId
    planner: str
    points: tuple[FrontierPoint, ...]
    schedule_class: str | None = None
    baseline: Baseline | None = field(default=None, compare=False, metadata={"file": False})

    def time_ns(self, budget: int | str) -> int | None:
        """Returns the best time within a budget.

        Args:
            budget: Bytes, a text such as "8 GiB", or a share such as "60%" of plain training's
                peak.

        Returns:
            The time of a step in nanoseconds, or None if the planner has no plan for the budget.

        Raises:
            InputError: The budget is no budget, or it is a share and the baseline is unknown.

        Examples:
            >>> curve = reprise.frontier(chain)
            >>> time = curve.time_ns("60%")
        """
        peak = self.baseline.peak_bytes if self.baseline else None
        limit = _core.resolve_budget(budget, peak)
        best = [point.time_ns for point in self.points if point.budget_bytes <= limit]
        return best[-1] if best else None

    def svg(
        self,
        marks: tuple[int | str, ...] = (),
        title: str = "",
        compared: Mapping[str, Frontier] | None = None,
    ) -> Svg:
        """Returns a picture of the frontier.

        Args:
            marks: The budgets that the picture points out, as for `time_ns()`.
            title: The title of the picture.
            compared: Other frontiers of the problem by their names in the picture, such as one
                without a machine.

        Raises:
            InputError: A mark is no budget.
        """
        plain = self.baseline or Baseline(self.points[-1].peak_bytes, self.points[-1].time_ns)
        budgets = [_core.resolve_budget(mark, plain.peak_bytes) for mark in marks]
        others = [(name, other.to_json()) for name, other in (compared or {}).items()]
        return Svg(
            _core.frontier_svg(
                self.to_json(), plain.peak_bytes, plain.time_ns, budgets, title, others
            )
        )

    def plot(self, ax: Any = None) -> Any:
        """Draws the frontier with matplotlib: budgets in MiB, times in milliseconds.

        Args:
            ax: The axes to draw into. New axes are made if it is None.

        Returns:
            The axes, or an `Svg` if matplotlib is not installed.
        """
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
        return (self.svg().text if self.points else "") + fields_html(self)
