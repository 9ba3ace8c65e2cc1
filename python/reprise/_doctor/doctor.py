"""The first thing to run when something seems wrong: `doctor()`.

It lists the versions, looks for what is off, and tries one training step, plain and planned.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .. import _core
from .._built_for import TORCH_VERSION
from ..errors import InputError
from .diagnosis import Diagnosis, Finding, Trial

if TYPE_CHECKING:
    import torch

PLEASE = "please report this"


def doctor(
    model: Any = None,
    sample: Any = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    step: Callable[..., Any] | None = None,
    modules: Sequence[torch.nn.Module] | None = None,
    budget: int | str | None = None,
) -> Diagnosis:
    """Looks at this installation, and tries one training step, plain and planned, in both modes.

    The planned step has to have the same bits as the plain one in loss, gradients, buffers and
    random state, and a peak within its budget. The step and its model are left as they were.
    Without PyTorch there is nothing to try, and the diagnosis says so. Without any arguments a
    small model is tried.

    Args:
        model: A model as for `remat()`. A model that is no chain of stages is tried in graph mode
            only.
        sample: An input of the model, or a tuple of inputs.
        loss: The function that training applies to the output. It returns a tensor of one element.
            None stands for the mean of the output's squares.
        step: A whole training step, as for `capture()`, in place of a model. It is called with the
            sample.
        modules: The modules that the step trains, if the step does not show them.
        budget: The budget of the planned steps, as for `remat()`. None stands for 70% of plain
            training's peak, or for the smallest budget that is possible if that is larger.

    Returns:
        The diagnosis. Its `well` says whether every step that was tried kept all promises.

    Raises:
        InputError: There is a model or a step, and no sample.

    Examples:
        >>> found = reprise.doctor(plain, x)
        >>> assert found.well, found
    """
    versions = {"reprise": _core.__version__, "python": platform.python_version()}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    if (model is not None or step is not None) and sample is None:
        raise InputError("to try a model, doctor() needs a sample of its input")
    try:
        from .. import _torch  # noqa: F401 - It raises InputError where training is not possible.
    except InputError as error:
        finding = Finding(f"models cannot be trained here: {error}", "planning and checking work")
        return Diagnosis(versions, system, None, (), (finding,))
    import torch

    from . import trial as _trial

    versions["torch"] = str(torch.__version__)
    findings = _look_around()
    if model is None and step is None:
        model, sample = _trial.small_model()
    trials = _trial.try_steps(model, sample, loss, step, modules, budget)
    for trial in trials:
        findings += _judge(trial)
    return Diagnosis(versions, system, torch.get_num_threads(), tuple(trials), tuple(findings))


def _look_around() -> list[Finding]:
    """Returns what is off with the threads and with the version of PyTorch."""
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
    """Returns what is off with a trial, and what to do about it."""
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
    findings = []
    if trial.measured_peak_bytes < trial.predicted_peak_bytes:
        advice = "known of recurrent models and of tensors that outlive a step; harmless"
        findings.append(Finding(f"{name}: the measured peak is below the predicted one", advice))
    if trial.explanation is not None and trial.explanation.unwatched:
        what = "; ".join(trial.explanation.unwatched)
        advice = "lockstep finds a change of it, but some calls later; or make it an input"
        findings.append(Finding(f"{name}: not compared before a call: {what}", advice))
    return findings
