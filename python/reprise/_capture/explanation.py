"""Explanations of captured steps: what a step depends on, and how a change of it is noticed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .._planning.explanation import Explanation
from .._planning.html import table
from .._planning.report import ReportNotes

# A line of names has at most so many characters, and a list so many lines.
WIDEST = 100
LONGEST = 12


@dataclass(frozen=True)
class StepExplanation:
    """Says what a captured step depends on, and who notices a change of it.

    A captured step does not run Python again. State that is `compared` is looked at before each
    call, and a `host_read` in its place within the call, so that no call goes on with what has
    changed. A change of `unwatched` state is found by lockstep, so some calls late, or not at all
    if lockstep is "never". `str()` of an explanation is a text for people.

    Attributes:
        compared: The names of the state that is compared before each call, by kind: of the
            function, attributes, containers, modules and parameters, files, the environment, and
            settings of PyTorch.
        inputs: The number of tensors among the inputs. Their shapes, types, strides and shared
            memory are compared before each call.
        input_constants: The number of numbers and texts among the inputs. They are compared, too.
        host_reads: The booleans and whole numbers that the step reads out of tensors, as
            `CapturedStep.host_reads()` returns them.
        unwatched: The state that the function reaches and that is not compared, with the reason.
        unguarded: The names of `capture(unguarded=...)`, whose changes are allowed.
        lockstep: The calls at which the function runs beside its recording, as for `capture()`.
        steps: The number of calls so far.
        lockstep_steps: The number of calls so far that lockstep compared with the function.
        plan: The explanation of the plan in force, or None if nothing is planned.
        refused: What alternatives found in the step and do not offer to the planner, with the
            reason: fused regions whose compiled kernel has other bits, for example.
    """

    compared: dict[str, tuple[str, ...]]
    inputs: int
    input_constants: int
    host_reads: tuple[str, ...]
    unwatched: tuple[str, ...]
    unguarded: tuple[str, ...]
    lockstep: str
    steps: int
    lockstep_steps: int
    plan: Explanation | None = None
    refused: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = ["compared before each call:"]
        lines.append(f"  inputs: {self.inputs} tensors, {self.input_constants} numbers and texts")
        lines += [f"  {kind}: {_counted(names)}" for kind, names in self.compared.items()]
        lines += _listed("read out of tensors, and compared within each call", self.host_reads)
        finder = "nothing" if self.lockstep == "never" else "lockstep"
        lines += _listed(f"not compared; {finder} finds a change", self.unwatched)
        lines += _listed("may change (unguarded)", self.unguarded)
        lines += _listed("not offered to the planner", self.refused)
        lines.append(
            f'lockstep "{self.lockstep}": {self.lockstep_steps} of {self.steps} calls were '
            "compared with the function"
        )
        return "\n".join(lines if self.plan is None else [*lines, "", str(self.plan)])

    def __repr__(self) -> str:
        return f"StepExplanation({self.summary()})"

    def summary(self) -> str:
        """Returns the numbers of names of each kind as one line."""
        kinds = [f"{kind} {len(names)}" for kind, names in self.compared.items()]
        rest = f"host reads {len(self.host_reads)}, not compared {len(self.unwatched)}"
        return ", ".join([*kinds, rest])

    def rows(self) -> list[tuple[str, str]]:
        """Returns what a table of the explanation shows: kinds of state, and the names of each."""
        inputs = f"{self.inputs} tensors, {self.input_constants} numbers and texts"
        rows = [("compared: inputs", inputs)]
        rows += [(f"compared: {kind}", _counted(names)) for kind, names in self.compared.items()]
        rows += [("read out of tensors", text) for text in self.host_reads]
        rows += [("not compared", text) for text in self.unwatched]
        rows += [("may change (unguarded)", name) for name in self.unguarded]
        calls = f'"{self.lockstep}": {self.lockstep_steps} of {self.steps} calls were compared'
        rows += [("not offered to the planner", text) for text in self.refused]
        return [*rows, ("lockstep", calls)]

    def notes(self) -> ReportNotes:
        """Returns the explanation as a part of a report's page."""
        about = (
            "A captured step does not run Python again. State that is compared is looked at before "
            "each call, and what is read out of tensors within it. A change of the rest is found "
            "by lockstep only."
        )
        return ReportNotes("What the step depends on", about, tuple(self.rows()))

    def _repr_html_(self) -> str:
        return table(self.rows(), type(self).__name__)


def _listed(title: str, items: Iterable[str]) -> list[str]:
    found = [f"  {item}" for item in items]
    if len(found) > LONGEST:
        found[LONGEST:] = [f"  and {len(found) - LONGEST} more"]
    return [f"{title}:", *found] if found else []


def _counted(names: tuple[str, ...]) -> str:
    """Returns the number of names and as many of them as fit on a line."""
    text, shown = f"{len(names)}", 0
    for name in names:
        if len(text) + len(name) > WIDEST:
            break
        text += f"{': ' if shown == 0 else ', '}{name}"
        shown += 1
    return text if shown == len(names) else f"{text}, ..."
