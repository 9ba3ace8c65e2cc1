"""The answer of `judge()`: what a step takes, and what it does again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .. import _core
from .._planning.html import lined_table
from .diagnosis import Finding


@dataclass(frozen=True)
class JudgedStep:
    """One way to run the step, as it was measured.

    Attributes:
        name: The name of the way: "plain", "this step" or "reprise".
        peak_bytes: The most bytes of tensors that are live at one time.
        reserved_bytes: The most bytes that PyTorch's allocator takes from the device, or None where
            it keeps none, as on the CPU.
        time_ns: The median time of a run in nanoseconds.
        calls: The calls of operators that compute, or None if they were not counted.
        different: The names of the results that have not the bits of plain training.
        error: The reason why this way was not run, or "".
    """

    name: str
    peak_bytes: int = 0
    reserved_bytes: int | None = None
    time_ns: int = 0
    calls: int | None = None
    different: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class Judgement:
    """The answer of `judge()`. `str()` of it is a table for people.

    Attributes:
        device: The device of the step.
        steps: Plain training, the step, and Reprise within the step's peak, as far as they ran.
        again: The operators that the step calls more often than plain training, each with the
            number of calls more, the largest first.
        modules: The modules that run again during the backward, each with the number of times.
        findings: All that is off, with advice.
    """

    device: str
    steps: tuple[JudgedStep, ...]
    again: tuple[tuple[str, int], ...]
    modules: tuple[tuple[str, int], ...]
    findings: tuple[Finding, ...]

    def step(self, name: str) -> JudgedStep | None:
        """Returns the way with this name, or None if it did not run.

        Args:
            name: "plain", "this step" or "reprise".
        """
        found = (one for one in self.steps if one.name == name and not one.error)
        return next(found, None)

    @property
    def well(self) -> bool:
        """Whether the step has the bits of plain training."""
        judged = self.step("this step")
        return judged is not None and not judged.different

    @property
    def calls_again(self) -> int:
        """The number of calls that the step makes more than plain training."""
        return sum(number for _, number in self.again)

    def __str__(self) -> str:
        head, rows = self._table()
        widths = [max(len(line[c]) for line in (head, *rows)) for c in range(len(head))]
        lines = [f"on {self.device}:"]
        for line in (head, *rows):
            padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            lines.append("  ".join(padded).rstrip())
        lines += [f"{name}: {one.error}" for one in self.steps if (name := one.name) and one.error]
        if self.again:
            lines.append(f"runs again: {_listed(self.again)}")
        if self.modules:
            lines.append(f"modules that run again in the backward: {_listed(self.modules)}")
        lines += [f"- {finding.what}: {finding.advice}" for finding in self.findings]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, rows = self._table()
        return lined_table(head, rows)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["", "bits", "peak", "reserved", "step", "against plain", "calls", "again"]
        plain = self.step("plain")
        rows = []
        for one in self.steps:
            if one.error:
                rows.append([one.name, *["-"] * 7])
                continue
            slower = ""
            if plain is not None and one is not plain and plain.time_ns:
                slower = f"{100 * one.time_ns / plain.time_ns - 100:+.1f} %"
            reserved = one.reserved_bytes
            bits = "" if one is plain else "differ" if one.different else "the same"
            again = "" if one is plain else "-" if one.calls is None else str(self.calls_again)
            rows.append(
                [
                    one.name,
                    bits,
                    _core.format_bytes(one.peak_bytes),
                    "-" if reserved is None else _core.format_bytes(reserved),
                    _core.format_duration(one.time_ns),
                    slower,
                    "-" if one.calls is None else str(one.calls),
                    again,
                ]
            )
        return head, rows


def _listed(counts: Sequence[tuple[str, int]], most: int = 8) -> str:
    shown = ", ".join(f"{name} x{number}" for name, number in counts[:most])
    rest = len(counts) - most
    return f"{shown} and {rest} more" if rest > 0 else shown
