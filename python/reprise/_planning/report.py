"""The report: a plan as one HTML page."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from .. import _core
from .arguments import nanoseconds
from .document import Path
from .measured import RunLog
from .problems import MachineLike, PlanLike, Problem, machine_text, text_of


@dataclass(frozen=True)
class ReportNotes:
    """A part of a report's page that the caller writes: a table of names and texts.

    Attributes:
        title: The title of the part.
        about: A sentence below it.
        rows: The names and the texts.
    """

    title: str
    about: str = ""
    rows: tuple[tuple[str, str], ...] = ()


def report_html(
    problem: Problem,
    plan: PlanLike,
    *,
    run_log: RunLog | None = None,
    machine: MachineLike | None = None,
    notes: Iterable[ReportNotes] = (),
    path: Path | None = None,
    time_limit: float | str = 3.0,
) -> str:
    """Shows a plan as one self-contained HTML page.

    The page shows the memory over the step beside plain training's, what runs when, what is
    recomputed and why, and where each block lies in memory.

    Args:
        problem: A path, a dict in the file format, or a `Chain`, `Graph` or `Profile`.
        plan: A path, a dict in the file format, or a `Plan`.
        run_log: The measurements of the plan's runs. The page shows them beside the planned values.
        machine: The machine of a plan that moves values: a path, or a dict in the file format.
        notes: More parts of the page, behind the others.
        path: The file that the page is written to, or None for no file.
        time_limit: The time for the frontier: seconds, or a text such as "3s". With 0
            the page has no frontier.

    Returns:
        The page as a text.

    Raises:
        InputError: The problem, the plan or the machine cannot be read, an action cannot run, the
            run log is of another plan, or the file cannot be written.

    Examples:
        >>> page = reprise.report_html(chain, plan, path="plan.html")
    """
    measured = None if run_log is None else run_log.text()
    page = _core.report_html(
        *text_of(problem, "problem"),
        *text_of(plan, "plan"),
        measured,
        "run log",
        machine_text(machine),
        [(one.title, one.about, list(one.rows)) for one in notes],
        nanoseconds(time_limit),
    )
    if path is not None:
        _core.write_file(os.fspath(path), page)
    return page
