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
from .._capture.followed import FollowedStep
from .._chain.remat import Remat
from .._planning.arguments import Budget, Observer, nanoseconds
from .._step.before import Before
from .._step.foreseen import ForeseenState
from .._step.memory import install_cpu_allocator, peak_bytes, reset_peak
from .._step.overhead import Overheads
from .._step.report import StepReport
from .._step.share import FixedShare, bytes_of, is_share
from .._step.stages import Stages, check_model
from .._step.tree import flatten, without_history
from ..errors import BudgetError, Error, InputError, InternalError
from .layer_step import LayerStep, repeated_layers
from .online import OnlineReport, online

# The modes that can be asked for, and "auto", in which the first three are tried in this order.
MODES = ("auto", "follow", "chain", "online", "graph")

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
    outcomes: int | None = None
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
    """A mode that works: what runs the step, and the reason in words.

    `results` has what the step returned if it ran when the mode was made.
    """

    runner: Runner
    mode: str
    reason: str
    results: tuple[Any, ...] = ()


class ModeTried(NamedTuple):
    """A mode that was tried for a step.

    Attributes:
        mode: The mode: "follow", "chain", "online", "graph" or "guarded graph".
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


def order_of(mode: str, *, chain: bool = True) -> tuple[str, ...]:
    """Returns the modes that are tried, in their order. Chain mode is one of them if it can be.

    Raises:
        InputError: There is no such mode.
    """
    if mode not in MODES:
        raise InputError(f"mode is one of {', '.join(MODES)}, not {mode!r}")
    if mode != "auto":
        return (mode,)
    return tuple(one for one in MODES[1:4] if one != "chain" or chain)


def in_lines(tried: Sequence[ModeTried]) -> str:
    """Returns a text with a line for each mode that was tried."""
    return "\n".join(f"- {t.mode}: {'works' if t.works else 'no'}: {t.reason}" for t in tried)


def choose(
    order: Sequence[str],
    make: Callable[[str], Works],
    refusal: Callable[[Exception], str | None] = reason_of,
    before: Sequence[ModeTried] = (),
    failed: Exception | None = None,
) -> tuple[Works, list[ModeTried]]:
    """Returns the first mode that works, and all modes that were tried.

    Args:
        order: The modes in the order in which they are tried.
        make: Makes the step in a mode, or raises.
        refusal: Returns the reason why a mode does not work, or None for an error that the caller
            of the step has to see.
        before: Modes that do not work any more. They stand in front of those that are tried.
        failed: The error of the last of them.

    Raises:
        BudgetError: No mode works, and at least one did not fit the budget.
        InputError: No mode works.
    """
    tried = list(before)
    errors = [] if failed is None else [failed]
    for mode in order:
        try:
            works = make(mode)
        except Exception as error:
            reason = refusal(error)
            if reason is None or len(order) + len(before) == 1:
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


class _BeforeFirst:
    """What was before the first call of a followed step, in case another mode has to run it."""

    def __init__(self, wanted: Wanted, sample: Sample) -> None:
        self._parameters = [p for module in wanted.modules for p in module.parameters()]
        self._versions = [p._version for p in self._parameters]
        tensors = tensors_in(sample)
        self._before = Before([wanted.step], wanted.modules, [], tensors, updates=False)

    def put_back(self) -> bool:
        """Puts it back. Returns False if the call has updated parameters, which were not copied."""
        if [p._version for p in self._parameters] != self._versions:
            return False
        self._before.put_back()
        return True


class Choice:
    """The mode that a step runs in. A mode that fails at a later call makes room for the next one.

    Attributes:
        works: The mode that was taken.
        tried: The modes that were tried, in their order.
    """

    works: Works
    tried: list[ModeTried]

    def __init__(
        self,
        order: Sequence[str],
        make: Callable[[str, Sample], Works],
        wanted: Wanted,
        sample: Sample,
        overheads: Overheads,
        why: str | None,
    ) -> None:
        self._make, self._wanted, self._overheads = make, wanted, overheads
        self._choose(order, sample, why)

    def _choose(
        self,
        order: Sequence[str],
        sample: Sample,
        why: str | None,
        before: Sequence[ModeTried] = (),
        failed: Exception | None = None,
    ) -> None:
        def make(mode: str) -> Works:
            return self._make(mode, sample)

        noted: contextlib.AbstractContextManager[list[str]] = contextlib.nullcontext([])
        if why is not None:
            noted = self._overheads.noting("choose a mode", why)
        with noted as found:
            self.works, self.tried = choose(order, make, before=before, failed=failed)
            found.append(f"{self.works.mode} mode, {self.works.reason}")
        self._left = order[order.index(self.mode) + 1 :]

    @property
    def mode(self) -> str:
        """The mode, without a word on what is compared in it."""
        return self.works.mode.removeprefix("guarded ")

    def run(self, sample: Sample) -> Any:
        """Runs a call, or returns what it gave if it ran when its mode was made."""
        while not self.works.results:
            before = self._before_first(sample)
            when = "at a later call" if before is None else "at the first call"
            try:
                return self.works.runner(*sample.arguments, **sample.keywords)
            except Exception as error:
                reason = reason_of(error)
                if reason is None or (not self._left and len(self.tried) == 1):
                    raise
                _let_go(error)
                if self._left and not self._is_as_before(before):
                    raise
                failed = refused_mode(self.mode, f"{when}: {reason}", error)
                why = f"{self.mode} mode failed {when}"
                self._choose(self._left, sample, why, [*self.tried[:-1], failed], error)
        result = self.works.results[0]
        self.works = self.works._replace(results=())
        return result

    def _before_first(self, sample: Sample) -> _BeforeFirst | None:
        """Notes what is before the first call of a followed step if another mode may run it."""
        runner = self.works.runner
        if not self._left or not isinstance(runner, FollowedStep) or runner.report().steps:
            return None
        return _BeforeFirst(self._wanted, sample)

    def _is_as_before(self, before: _BeforeFirst | None) -> bool:
        """Says whether all is as before the call that failed, so that another mode may run it."""
        runner = self.works.runner
        if not isinstance(runner, FollowedStep) or not runner.has_begun():
            return True
        return before is not None and before.put_back()


def _let_go(error: BaseException | None) -> None:
    """Drops what the frames of an exception hold, which would lie beside the next mode."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def tensors_in(sample: Sample) -> list[torch.Tensor]:
    """Returns the tensors of a sample. None are found among objects of the user's own."""
    try:
        return flatten(tuple(sample), "the sample")[0]
    except InputError:
        return []


def device_of(wanted: Wanted, sample: Sample) -> torch.device:
    """Returns the device of the sample, or that of the parameters if they are elsewhere."""
    parameters = [p for module in wanted.modules for p in module.parameters()]
    devices = [t.device for t in [*tensors_in(sample), *parameters]]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def run_whole(wanted: Wanted, sample: Sample) -> Any:
    """Runs the step, and the optimizer's step behind it if there is an optimizer."""
    result = wanted.step(*sample.arguments, **sample.keywords)
    if wanted.optimizer is not None:
        wanted.optimizer.step()
        wanted.optimizer.zero_grad()
    return result


def graph_mode(wanted: Wanted, sample: Sample) -> Works:
    """Records and plans the step. What was not recorded is recorded when it comes."""
    captured = capture(
        wanted.step,
        *sample.arguments,
        modules=wanted.modules,
        on_miss="recapture",
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
                "planner": "chain",
                "time_limit_ns": nanoseconds(wanted.time_limit),
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


def share_of(runner: Runner) -> FixedShare | None:
    """Returns the share that the first call of a runner has made bytes."""
    return runner.share if isinstance(runner, (FollowedStep, OnlineStep)) else None


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
        self._device = device_of(wanted, sample)
        install_cpu_allocator()
        budget = wanted.budget
        self._wanted, self._plain_peak, self.share = wanted, 0, None
        self._named = str(budget) if is_share(budget) else None  # until it is bytes
        # It raises InputError if PyTorch is too old, or if the device's memory cannot be limited.
        self._online = online(budget=None if self._named else budget, device=self._device)

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
        reset_peak(self._device)
        result = run_whole(self._wanted, sample)
        self._plain_peak = peak_bytes(self._device)
        foreseen = ForeseenState(
            self,
            lambda step: (p for module in step._wanted.modules for p in module.parameters()),
            self._wanted.optimizer,
        )
        foreseen.look()
        budget = _core.resolve_budget(share, self._plain_peak + foreseen())
        self._online = online(budget=budget, device=self._device)
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
