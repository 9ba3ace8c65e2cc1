"""The first thing to ask of somebody who reports a problem: what there is, and whether a planned
step has the bits of the same step in plain training."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import _core
from ._built_for import TORCH_VERSION
from ._html import fields_html
from .errors import BudgetError, Error, InputError

if TYPE_CHECKING:
    import torch

# Where none is asked for: a share of plain training's peak, or what is possible where that is not.
USUAL_BUDGET = "70%"
PLEASE = "please report this"


@dataclass(frozen=True)
class Finding:
    """Something that is off, and what to do about it."""

    what: str
    advice: str


@dataclass(frozen=True)
class Trial:
    """One step of a model, plain and planned, in one of the two modes."""

    mode: str  # "chain", "graph"
    # Names of what is not the same to the bit; None: there was no planned step.
    different: tuple[str, ...] | None = None
    error: str | None = None  # why there was none
    repeats: bool = True  # plain training has the same bits twice
    plain_peak_bytes: int | None = None  # on the CPU
    budget_bytes: int | None = None
    predicted_peak_bytes: int = 0
    measured_peak_bytes: int = 0

    @property
    def well(self) -> bool:
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
        return (
            f"{self.mode} mode: {bits}; peak predicted {self.predicted_peak_bytes} B, measured "
            f"{self.measured_peak_bytes} B, budget {self.budget_bytes} B, plain {plain}"
        )


@dataclass(frozen=True)
class Diagnosis:
    """What doctor() found. `well`: every step that was tried kept all promises."""

    versions: dict[str, str]
    system: str
    threads: int | None  # of PyTorch; None without it
    trials: tuple[Trial, ...]
    findings: tuple[Finding, ...]

    @property
    def well(self) -> bool:
        return all(trial.well for trial in self.trials)

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        threads = "" if self.threads is None else f", {self.threads} threads"
        lines = [versions, self.system + threads, *map(str, self.trials)]
        lines += [f"- {finding.what}: {finding.advice}" for finding in self.findings]
        return "\n".join([*lines, "all is well" if self.well else "something is wrong"])

    def _repr_html_(self) -> str:
        return fields_html(self)


def doctor(
    model: Any = None,
    sample: Any = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    step: Callable[..., Any] | None = None,
    modules: Sequence[torch.nn.Module] | None = None,
    budget: int | str | None = None,
) -> Diagnosis:
    """Looks at this installation and tries one training step, plain and planned, in both modes: the
    same bits in loss, gradients, buffers and random state, and a peak within the budget.

    `model` and `sample` as for remat(); a model that is no chain of stages is tried in graph mode
    only. `loss(output)`: default is the mean of squares. `step(*sample)`: a whole training step,
    as for capture(), in place of a model; `modules`: those that it trains, where it does not show
    them. Without all these a small model of ours is tried. `budget` is that of the planned steps:
    default is 70% of plain training's peak, or the smallest that is possible.

    What is tried is left as it was: parameters, gradients, buffers, random state. Without PyTorch
    there is nothing to try, and the diagnosis says so. InputError for a model without a sample.
    """
    versions = {"reprise": _core.__version__, "python": platform.python_version()}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    if (model is not None or step is not None) and sample is None:
        raise InputError("to try a model, doctor() needs a sample of its input")
    try:
        from . import _torch  # noqa: F401 - says what is missing, if something is
    except InputError as error:
        finding = Finding(f"models cannot be trained here: {error}", "planning and checking work")
        return Diagnosis(versions, system, None, (), (finding,))
    import torch

    from . import _trial

    versions["torch"] = str(torch.__version__)
    findings = _look_around()
    if model is None and step is None:
        model, sample = _trial.small_model()
    trials = _trial.try_steps(model, sample, loss, step, modules, budget)
    for trial in trials:
        findings += _judge(trial)
    return Diagnosis(versions, system, torch.get_num_threads(), tuple(trials), tuple(findings))


def _look_around() -> list[Finding]:
    import torch

    findings = []
    cores = len(os.sched_getaffinity(0))
    if torch.get_num_threads() > cores:
        what = f"PyTorch uses {torch.get_num_threads()} threads, this process may use {cores} cores"
        findings.append(
            Finding(what, f"torch.set_num_threads({cores}); more are many times slower")
        )
    if str(torch.__version__).partition("+")[0] != TORCH_VERSION:
        findings.append(Finding(f"built for PyTorch {TORCH_VERSION}", "build the package again"))
    return findings


def _judge(trial: Trial) -> list[Finding]:
    name = f"{trial.mode} mode"
    if trial.different is None:
        return [Finding(f"{name} was not tried", "see the reason above")]
    if trial.different and not trial.repeats:
        advice = "torch.use_deterministic_algorithms(True) and one thread, and try again"
        return [Finding("plain training itself does not repeat its bits here", advice)]
    if trial.different:
        return [Finding(f"{name}: other bits than plain training", PLEASE)]
    if not trial.well:
        return [Finding(f"{name}: the measured peak is above the promised one", PLEASE)]
    if trial.measured_peak_bytes < trial.predicted_peak_bytes:
        advice = "known of recurrent models and of tensors that outlive a step; harmless"
        return [Finding(f"{name}: the measured peak is below the predicted one", advice)]
    return []


def smallest_of(error: Error) -> int | None:
    """The budget to try when one is infeasible."""
    return error.requested if isinstance(error, BudgetError) and error.requested > 0 else None
