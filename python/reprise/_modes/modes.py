"""The modes in which a training step can run, and the choice among them.

`train_step()` and `integrations.steps.by_kind()` both make the modes here, and both choose by
`choose()`. A mode that does not work raises InputError, BudgetError or a failed allocation.
"""

from __future__ import annotations

import contextlib
import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from .. import _core
from .._capture.capture import capture
from .._chain.remat import Remat
from .._planning.arguments import Budget, Observer, nanoseconds
from .._step.foreseen import ForeseenState
from .._step.memory import install_cpu_allocator, peak_bytes, reset_peak
from .._step.report import StepReport
from .._step.share import FixedShare, bytes_of, is_share
from .._step.stages import Stages, check_model
from .._step.tree import flatten, rebuild
from ..errors import BudgetError, Error, InputError, InternalError
from .layer_step import LayerStep, repeated_layers
from .online import OnlineReport, online

# The type of PyTorch's error where the allocator of a device has no memory.
_NO_MEMORY = (MemoryError, torch.OutOfMemoryError)


class Wanted(NamedTuple):
    """A step and what is wanted of it: the arguments of `train_step()` and of `by_kind()`."""

    step: Callable[..., Any]
    budget: Budget
    modules: list[nn.Module]
    stages: Stages | None = None
    module: nn.Module | None = None
    layers: list[nn.Module] | None = None
    optimizer: torch.optim.Optimizer | None = None
    unguarded: Sequence[str] = ()
    outcomes: int = 4
    time_limit: float | str = 10.0
    name: str = "step"
    observer: Observer | None = None


class Sample(NamedTuple):
    """The arguments that a mode is made for. The runner of the step does not keep them."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Runner(Protocol):
    """A step in one mode. It is called like the user's function."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any: ...

    def report(self) -> StepReport | OnlineReport:
        """Returns the report of the last step."""
        ...


class Works(NamedTuple):
    """A mode that works: what runs the step, and the reason in words."""

    runner: Runner
    mode: str
    reason: str


class ModeTried(NamedTuple):
    """A mode that was tried for a step.

    Attributes:
        mode: The mode: "graph", "guarded graph", "chain" or "online".
        works: Whether the step can run in this mode.
        reason: The reason in words.
        smallest_budget: The smallest budget in bytes that this mode has a plan for, or 0 if it is
            not known.
    """

    mode: str
    works: bool
    reason: str
    smallest_budget: int = 0


def reason_of(error: Exception) -> str | None:
    """Returns why a mode does not work, or None for an error that is the step's own."""
    if isinstance(error, InternalError):
        return None
    if isinstance(error, (Error, *_NO_MEMORY)) or "can't allocate memory" in str(error):
        return str(error).strip() or type(error).__name__
    return None


def in_lines(tried: Sequence[ModeTried]) -> str:
    """Returns a text with a line for each mode that was tried."""
    return "\n".join(f"- {t.mode}: {'works' if t.works else 'no'}: {t.reason}" for t in tried)


def choose(
    order: Sequence[str],
    make: Callable[[str], Works],
    refusal: Callable[[Exception], str | None] = reason_of,
) -> tuple[Works, list[ModeTried]]:
    """Returns the first mode that works, and all modes that were tried.

    Args:
        order: The modes in the order in which they are tried.
        make: Makes the step in a mode, or raises.
        refusal: Returns the reason why a mode does not work, or None for an error that the caller
            of the step has to see.

    Raises:
        BudgetError: No mode works, and at least one did not fit the budget.
        InputError: No mode works.
    """
    tried: list[ModeTried] = []
    errors: list[Exception] = []
    for mode in order:
        try:
            works = make(mode)
        except Exception as error:
            reason = refusal(error)
            if reason is None or len(order) == 1:
                raise
            _let_go(error)
            tried.append(refused_mode(mode, reason, error))
            errors.append(error)
            continue
        return works, [*tried, ModeTried(works.mode, True, works.reason)]
    raise no_mode_left(tried, errors) from errors[-1]


def refused_mode(mode: str, reason: str, error: Exception) -> ModeTried:
    """Returns a mode that did not work, with the smallest budget that its error names."""
    smallest = 0
    if isinstance(error, BudgetError) and error.requested > error.budget:
        smallest = error.requested
    return ModeTried(mode, False, reason, smallest)


def no_mode_left(tried: Sequence[ModeTried], errors: Sequence[Exception]) -> Error:
    """Returns the exception for a step that runs in none of these modes."""
    message = "the step cannot be trained in this budget:\n" + in_lines(tried)
    refused = [error for error in errors if isinstance(error, BudgetError)]
    if not refused:
        return InputError(message)
    smallest = min((one.smallest_budget for one in tried if one.smallest_budget), default=0)
    return BudgetError(message, refused[-1].budget, refused[-1].live, smallest)


def _let_go(error: BaseException | None) -> None:
    """Drops what the frames of an exception hold, which would lie beside the next mode."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def device_of(wanted: Wanted, sample: Sample) -> torch.device:
    """Returns the device of the sample, or that of the parameters if they are elsewhere."""
    tensors, _ = flatten(tuple(sample), "the sample")
    parameters = [p for module in wanted.modules for p in module.parameters()]
    devices = [t.device for t in [*tensors, *parameters]]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def run_whole(wanted: Wanted, sample: Sample) -> Any:
    """Runs the step, and the optimizer's step behind it if there is an optimizer."""
    result = wanted.step(*sample.arguments, **sample.keywords)
    if wanted.optimizer is not None:
        wanted.optimizer.step()
        wanted.optimizer.zero_grad()
    return result


def without_history(result: Any) -> Any:
    """Returns what a step returns, with tensors that have no history, as a captured step does."""
    try:
        tensors, tree = flatten(result, "what the step returns")
    except InputError:  # Objects of the user's own are returned as they are.
        return result
    return rebuild(tree, [tensor.detach() for tensor in tensors])


def graph_mode(wanted: Wanted, sample: Sample, *, online_works: bool = False) -> Works:
    """Records and plans the step. If online mode works, it is there for what was not recorded."""
    captured = capture(
        wanted.step,
        *sample.arguments,
        modules=wanted.modules,
        on_miss="refuse" if online_works else "recapture",
        outcomes=wanted.outcomes,
        optimizer=wanted.optimizer,
        unguarded=wanted.unguarded,
        name=wanted.name,
        observer=wanted.observer,
        **sample.keywords,
    )
    result = captured.plan(budget=wanted.budget, time_limit=wanted.time_limit)
    assert result.plan is not None
    time = result.plan.time_ns / max(1, result.baseline.time_ns)
    peak = result.plan.peak_bytes / max(1, result.baseline.peak_bytes)
    reason = (
        f"the step was recorded, and a plan fits: {peak:.2f} of plain training's peak, "
        f"{time:.2f} of its time by the plan"
    )
    reads = len(captured.host_reads())
    if not reads:
        return Works(captured, "graph", reason)
    guarded = f"; {reads} number(s) that the step reads out of tensors are compared at each call"
    return Works(captured, "guarded graph", reason + guarded)


def follow_mode(wanted: Wanted, sample: Sample) -> Works:
    """Returns the step as one that is followed. Nothing runs before the first call."""
    followed = capture(
        wanted.step,
        *sample.arguments,
        modules=wanted.modules,
        outcomes=wanted.outcomes,
        optimizer=wanted.optimizer,
        name=wanted.name,
        observer=wanted.observer,
        follow=True,
        **sample.keywords,
    )
    followed.plan(budget=wanted.budget, time_limit=wanted.time_limit)
    return Works(followed, "follow", "the function runs at every call, beside a plan")


class ChainStep:
    """A step in which the call of a module runs as a planned chain of stages."""

    def __init__(self, wanted: Wanted) -> None:
        check_model(wanted.stages)
        target = wanted.module
        if target is None and isinstance(wanted.stages, nn.Sequential):
            target = wanted.stages
        if not isinstance(target, nn.Module):
            raise InputError(
                "a list of stages needs module=, the module that the step calls and that the "
                "stages stand for"
            )
        self._wanted, self._target = wanted, target
        self.planned = Remat(
            wanted.stages,
            target,
            {
                "budget": wanted.budget,
                "loss": None,
                "alternatives": None,
                "planner": "chain",
                "time_limit_ns": nanoseconds(wanted.time_limit),
                "enforce": True,
                "output_held": True,
                "offload": "",
                "machine": None,
                "name": wanted.name,
                "observer": wanted.observer,
            },
        )

    @contextlib.contextmanager
    def _in_force(self) -> Iterator[None]:
        """Lets calls of the module run its planned chain."""
        own = self._target.__dict__.get("forward")
        self._target.__dict__["forward"] = self.planned.forward
        try:
            yield
        finally:
            del self._target.__dict__["forward"]
            if own is not None:
                self._target.__dict__["forward"] = own

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self._in_force():
            return without_history(run_whole(self._wanted, Sample(arguments, keywords)))

    def report(self) -> StepReport:
        return self.planned.report()


def chain_mode(wanted: Wanted, sample: Sample) -> Works:
    """Plans the stages of the step's model, or its repeated layers, for the sample.

    With stages, the step also runs once. The caller puts back what it changes.
    """
    if wanted.stages is None:
        layers = wanted.layers or repeated_layers(wanted.modules)
        if not layers:
            raise InputError(
                "the modules of the step have no list of equal layers that run one after the "
                "other; name them with layers="
            )
        by_layers = LayerStep(
            wanted.step,
            layers,
            wanted.modules,
            wanted.budget,
            wanted.time_limit,
            wanted.observer,
        )
        by_layers.prepare(sample.arguments, sample.keywords)
        return Works(by_layers, "chain", "a plan of the repeated layers fits")
    runner = ChainStep(wanted)
    runner(*sample.arguments, **sample.keywords)
    result = runner.planned.planned
    plan = result.plan
    assert plan is not None
    time = plan.time_ns / max(1, result.baseline.time_ns)
    return Works(runner, "chain", f"a plan of the stages fits: {time:.2f} of plain training's time")


class OnlineStep:
    """A step in online mode.

    A share is one of plain training's peak. It becomes bytes at the first call, which runs plain.

    Attributes:
        share: The share as bytes, or None if there is none, or none yet.
    """

    share: FixedShare | None

    def __init__(self, wanted: Wanted, sample: Sample) -> None:
        device = device_of(wanted, sample)
        if device.type != "cpu":
            raise InputError(f"online mode works on the CPU, and the step is on {device}")
        install_cpu_allocator()
        budget = wanted.budget
        self._wanted, self._plain_peak, self.share = wanted, 0, None
        self._named = str(budget) if is_share(budget) else None  # until it is bytes
        # It raises InputError if PyTorch is too old.
        self._online = online(budget=None if self._named else budget)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        sample = Sample(arguments, keywords)
        if self._named is not None:
            return without_history(self._measure(sample, self._named))
        with self._told(sample), self._online:
            result = run_whole(self._wanted, sample)
        return without_history(result)

    @contextlib.contextmanager
    def _told(self, sample: Sample) -> Iterator[None]:
        if self.share is None:
            yield
            return
        with self.share.told(flatten(tuple(sample), "the input")[0]):
            yield

    def _measure(self, sample: Sample, share: str) -> Any:
        reset_peak()
        result = run_whole(self._wanted, sample)
        self._plain_peak = peak_bytes()
        foreseen = ForeseenState(
            self,
            lambda step: (p for module in step._wanted.modules for p in module.parameters()),
            self._wanted.optimizer,
        )
        foreseen.look()
        budget = _core.resolve_budget(share, self._plain_peak + foreseen())
        self._online = online(budget=budget)
        self._named = None
        self.share = FixedShare(budget, bytes_of(flatten(tuple(sample), "the input")[0]))
        return result

    def measure(self, sample: Sample) -> None:
        """Runs the step plain if the budget is a share. The caller puts back what it changes."""
        if self._named is not None:
            self._measure(sample, self._named)

    def try_once(self, sample: Sample) -> None:
        """Runs the step on the sample and undoes it."""
        native = self._online._native
        native.begin()
        try:
            run_whole(self._wanted, sample)
        except BaseException as error:
            native.fail(str(error))  # It raises the reason if there is a better one.
            raise
        native.undo()

    def report(self) -> OnlineReport:
        found = self._online.report()
        if found.steps == 0:  # The last step was the first one, and it ran plain.
            return dataclasses.replace(
                found, budget_bytes=None, measured_peak_bytes=self._plain_peak
            )
        return found
