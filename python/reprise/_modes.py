"""The modes in which `train_step()` can run a step: each is made, and tried, for a sample.

A mode that does not work raises InputError, BudgetError or a failed allocation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from . import _core
from ._arguments import Budget, Observer, nanoseconds
from ._before import Before
from ._capture import CapturedStep, capture
from ._online import Online, online
from ._remat import Remat
from ._stages import Stages, check_model
from ._torch import _runtime
from ._tree import flatten, rebuild
from .errors import BudgetError, InputError


class Wanted(NamedTuple):
    """A step and what is wanted of it: the arguments of `train_step()`."""

    step: Callable[..., Any]
    sample: tuple[Any, ...]
    keywords: dict[str, Any]
    budget: Budget
    stages: Stages | None
    module: nn.Module | None
    modules: list[nn.Module]
    optimizer: torch.optim.Optimizer | None
    unguarded: Sequence[str]
    outcomes: int
    time_limit: float | str
    name: str
    observer: Observer | None


class Works(NamedTuple):
    """A mode that works: what runs the step, and the reason in words."""

    runner: Any
    mode: str
    reason: str


def device_of(wanted: Wanted) -> torch.device:
    """Returns the device of the sample, or that of the parameters if they are elsewhere."""
    tensors, _ = flatten((wanted.sample, wanted.keywords), "the sample")
    parameters = [p for module in wanted.modules for p in module.parameters()]
    devices = [t.device for t in [*tensors, *parameters]]
    return next((d for d in devices if d.type != "cpu"), torch.device("cpu"))


def run_whole(wanted: Wanted, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    """Runs the step, and the optimizer's step behind it if there is an optimizer."""
    result = wanted.step(*arguments, **keywords)
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


def _recorded(wanted: Wanted, before: Before, *, online_works: bool) -> CapturedStep:
    """Records the step within the budget, if it can be recorded so."""
    share = isinstance(wanted.budget, str) and wanted.budget.strip().endswith("%")
    if wanted.budget is not None and not share and device_of(wanted).type == "cpu":
        try:
            online(budget=wanted.budget)  # It raises InputError if PyTorch is too old.
            within = True
        except InputError:
            within = False
        if within:
            try:
                return _record(wanted, wanted.budget, online_works=online_works)
            except BudgetError:
                before.put_back()
    return _record(wanted, None, online_works=online_works)


def _record(wanted: Wanted, budget: Budget, *, online_works: bool) -> CapturedStep:
    return capture(
        wanted.step,
        *wanted.sample,
        modules=wanted.modules,
        on_miss="refuse" if online_works else "recapture",
        outcomes=wanted.outcomes,
        optimizer=wanted.optimizer,
        budget=budget,
        unguarded=wanted.unguarded,
        name=wanted.name,
        observer=wanted.observer,
        **wanted.keywords,
    )


def graph_mode(wanted: Wanted, before: Before, *, online_works: bool) -> Works:
    """Records and plans the step. If online mode works, it is there for what was not recorded."""
    captured = _recorded(wanted, before, online_works=online_works)
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
            return without_history(run_whole(self._wanted, arguments, keywords))

    def report(self) -> Any:
        return self.planned.report()


def chain_mode(wanted: Wanted, before: Before) -> Works:
    """Plans the stages of the step's model, and runs the step once on the sample."""
    if wanted.stages is None:
        raise InputError("no stages= were given")
    runner = ChainStep(wanted)
    try:
        runner(*wanted.sample, **wanted.keywords)
        result = runner.planned.planned
    finally:
        before.put_back()
    plan = result.plan
    assert plan is not None
    time = plan.time_ns / max(1, result.baseline.time_ns)
    return Works(runner, "chain", f"a plan of the stages fits: {time:.2f} of plain training's time")


class OnlineStep:
    """A step in online mode."""

    def __init__(self, wanted: Wanted, budget: Budget) -> None:
        self._wanted = wanted
        self.online: Online = online(budget=budget)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        with self.online:
            result = run_whole(self._wanted, arguments, keywords)
        return without_history(result)

    def try_once(self) -> None:
        """Runs the step on the sample and undoes it."""
        native = self.online._native
        native.begin()
        try:
            run_whole(self._wanted, self._wanted.sample, self._wanted.keywords)
        except BaseException as error:
            native.fail(str(error))  # It raises the reason if there is a better one.
            raise
        native.undo()

    def report(self) -> Any:
        return self.online.report()


def online_step(wanted: Wanted, before: Before) -> OnlineStep:
    """Returns the step in online mode, not tried. A share is one of plain training's peak."""
    device = device_of(wanted)
    if device.type != "cpu":
        raise InputError(f"online mode works on the CPU, and the step is on {device}")
    runner = OnlineStep(wanted, None)  # It raises InputError if PyTorch is too old.
    budget = wanted.budget
    if isinstance(budget, str) and budget.strip().endswith("%"):
        _runtime.reset_peak()
        try:
            run_whole(wanted, wanted.sample, wanted.keywords)
            peak = _runtime.peak_bytes()
        finally:
            before.put_back()
        budget = _core.resolve_budget(budget, peak)
    return runner if budget is None else OnlineStep(wanted, budget)


def online_mode(wanted: Wanted, before: Before) -> Works:
    """Runs the step once on the sample in online mode, and undoes it."""
    runner = online_step(wanted, before)
    try:
        runner.try_once()
    finally:
        before.put_back()
    return Works(runner, "online", "the step ran inside the budget as it is written")
