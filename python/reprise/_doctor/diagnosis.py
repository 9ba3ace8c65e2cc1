"""The answer of `doctor()`: trials of a training step, findings, and the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass

from .._capture.explanation import StepExplanation
from .._planning.html import fields_html


@dataclass(frozen=True)
class Finding:
    """Something that is off, and what to do about it.

    Attributes:
        what: The thing that is off, as a sentence.
        advice: The advice, as a sentence.
    """

    what: str
    advice: str


@dataclass(frozen=True)
class Trial:
    """One step of a model, plain and planned, in one of the two modes.

    Attributes:
        mode: "chain" or "graph".
        different: The names of the results that are not the same to the bit. It is None if there
            was no planned step.
        error: The reason why there was no planned step, or None.
        repeats: Whether plain training has the same bits when it runs twice.
        plain_peak_bytes: The measured peak of plain training, or None if the device is not the CPU.
        budget_bytes: The budget of the planned step, or None for no limit.
        predicted_peak_bytes: The peak that the plan predicts.
        measured_peak_bytes: The measured peak of the planned step.
        explanation: What the captured step depends on, and its plan. It is None in chain mode,
            which runs the function itself, and if there was no planned step.
    """

    mode: str
    different: tuple[str, ...] | None = None
    error: str | None = None
    repeats: bool = True
    plain_peak_bytes: int | None = None
    budget_bytes: int | None = None
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0
    explanation: StepExplanation | None = None

    @property
    def well(self) -> bool:
        """Whether the planned step kept all promises: the same bits, and no peak above any limit.

        The measured peak may be above neither the budget nor the predicted peak.
        """
        within = self.budget_bytes is None or self.measured_peak_bytes <= self.budget_bytes
        return (
            self.different == ()
            and within
            and self.measured_peak_bytes <= self.predicted_peak_bytes
        )

    def __str__(self) -> str:
        if self.different is None:
            return f"{self.mode} mode: no planned step: {self.error}"
        bits = "not the same bits: " + ", ".join(self.different) if self.different else "same bits"
        plain = "unknown" if self.plain_peak_bytes is None else f"{self.plain_peak_bytes} B"
        line = (
            f"{self.mode} mode: {bits}; peak predicted {self.predicted_peak_bytes} B, measured "
            f"{self.measured_peak_bytes} B, budget {self.budget_bytes} B, plain {plain}"
        )
        if self.explanation is None:
            return line
        return f"{line}\n  compared before each call: {self.explanation.summary()}"


@dataclass(frozen=True)
class Diagnosis:
    """The answer of `doctor()`. `str()` of a diagnosis is a text for people.

    Attributes:
        versions: The versions of the software by name, for example of "torch".
        system: The operating system and the processor.
        threads: The number of threads within PyTorch's operations, or None without PyTorch.
        trials: The steps that were tried.
        findings: All that is off, with advice.
    """

    versions: dict[str, str]
    system: str
    threads: int | None
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]

    @property
    def well(self) -> bool:
        """Whether every step that was tried kept all promises."""
        return all(trial.well for trial in self.trials)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = "" if self.threads is None else f", {self.threads} threads"
        lines = [versions, self.system + threads, *map(str, self.trials)]
        lines += [f"- {finding.what}: {finding.advice}" for finding in self.findings]
        return "\n".join([*lines, "all is well" if self.well else "something is wrong"])

    def _repr_html_(self) -> str:
        return fields_html(self)
