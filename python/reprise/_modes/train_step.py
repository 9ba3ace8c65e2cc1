"""One call for every training step: `train_step()` takes the best mode that works."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .. import _core
from .._capture.capture import capture
from .._capture.captured_step import CapturedStep
from .._capture.keywords import refuse_astray
from .._planning.arguments import Budget, Observer
from .._planning.html import table
from .._step.before import Before
from .._step.memory import budget_for, install_cpu_allocator
from .._step.modules import modules_of, optimizers_of, outermost, schedules_of, with_optimizers
from .._step.overhead import Overheads
from .._step.report import StepReport
from .._step.stages import Stages
from .._step.tree import Tree, flatten
from .._step.turns import OfThisProcess, Turns
from ..errors import InputError, StepMiss
from .modes import (
    ModeTried,
    OnlineStep,
    Runner,
    Sample,
    Wanted,
    Works,
    chain_mode,
    choose,
    device_of,
    follow_mode,
    graph_mode,
    in_lines,
    reason_of,
)
from .online import OnlineReport

# The orders in which modes are tried.
_ORDERS = {
    "auto": ("graph", "chain", "online"),
    "graph": ("graph",),
    "chain": ("chain",),
    "online": ("online",),
    "follow": ("follow",),
}

_Signature = tuple[Tree, tuple[tuple[torch.Size, torch.dtype], ...]]


class TrainStep(OfThisProcess):
    """A training step inside a budget, in the best mode that works. Made by `train_step()`.

    It is called like the function. `str()` says which mode was taken, and why.

    Attributes:
        mode: The mode that was taken: "graph", "guarded graph", "chain", "online" or "follow".
        tried: The modes that were tried, in their order, with the reasons.
        calls: The number of calls that ran in each mode.
        last_miss: The difference at the last call that the recording did not fit; or "".
    """

    mode: str
    tried: list[ModeTried]
    calls: dict[str, int]
    last_miss: str

    def __init__(self, wanted: Wanted, sample: Sample, mode: str) -> None:
        self._turns = Turns()
        self._wanted = wanted
        self.calls = {}
        self.last_miss = ""
        self._captures_left = wanted.outcomes
        self._missed_before: _Signature | None = None  # by the call before this one
        self._read_misses = 0
        self._beside: OnlineStep | None = None  # for calls that are not what was recorded
        self._last: Runner | None = None  # of the last call
        tensors, _ = flatten(tuple(sample), "the sample")
        optimizers = optimizers_of(wanted.step)
        if wanted.optimizer is not None:
            optimizers.append(wanted.optimizer)
        before = Before(
            [wanted.step], wanted.modules, optimizers, tensors, schedules_of(wanted.step)
        )
        order = _ORDERS[mode]
        if mode == "auto" and wanted.stages is None:
            order = ("graph", "online")

        def tried(one: str) -> Works:
            recorded = False
            try:
                works = self._try(one, sample, before, alone=len(order) == 1)
                recorded = works.mode.endswith("graph")
                return works
            finally:
                # A recorded step has to find what it made in Python at its first run.
                before.put_back(python=not recorded)

        self._overheads = Overheads(f"the step '{wanted.name}'", ("it is the first",))
        with self._overheads.noting("choose a mode", "it is the first step") as found:
            works, self.tried = choose(order, tried)
            found.append(f"{works.mode} mode, {works.reason}")
        self.mode, self._runner = works.mode, works.runner

    def _try(self, mode: str, sample: Sample, before: Before, alone: bool) -> Works:
        if mode == "chain":
            return chain_mode(self._wanted, sample)
        if mode == "follow":
            return follow_mode(self._wanted, sample)
        if mode == "online":
            runner = self._online(sample, before)
            runner.try_once(sample)
            return Works(runner, "online", "the step ran inside the budget as it is written")
        if not alone:
            try:
                self._beside = self._online(sample, before)
            except InputError:  # It does not work here, so other inputs are recorded, too.
                self._beside = None
        return graph_mode(self._wanted, sample, online_works=self._beside is not None)

    def _online(self, sample: Sample, before: Before) -> OnlineStep:
        """Returns the step in online mode, not tried, with a budget in bytes."""
        runner = OnlineStep(self._wanted, sample)
        try:
            runner.measure(sample)
        finally:
            before.put_back()
        if runner.share is not None:  # All modes have the same bytes.
            self._wanted = self._wanted._replace(budget=runner.share.budget_bytes)
        return runner

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs one training step.

        Args:
            *arguments: The arguments of the function.
            **keywords: The keyword arguments of the function.

        Returns:
            The value that the function returns. Its tensors have no history.

        Raises:
            BudgetError: The step does not fit the budget. Everything is as before the step.
            InputError: The inputs cannot be used.
        """
        with self._turns:
            try:
                result = self._runner(*arguments, **keywords)
            except StepMiss as miss:
                if self._beside is None:
                    raise
                return self._run_other(miss, self._beside, arguments, keywords)
            except Exception as error:
                reason = reason_of(error)
                if reason is None or self._beside is None:
                    raise
                return self._run_in_next_mode(reason, self._beside, arguments, keywords)
            self._missed_before = None
            return self._ran(self.mode, self._runner, result)

    def _run_in_next_mode(
        self, reason: str, beside: OnlineStep, arguments: tuple[Any, ...], keywords: Any
    ) -> Any:
        """Runs this call and the next ones online. All is as before the call that failed."""
        self.tried[-1] = ModeTried(self.mode, False, f"at a later call: {reason}")
        self.tried.append(ModeTried("online", True, "the step runs as it is written"))
        self.mode, self._runner, self._beside = "online", beside, None
        return self._ran("online", beside, beside(*arguments, **keywords))

    def _ran(self, mode: str, runner: Runner, result: Any) -> Any:
        self.calls[mode] = self.calls.get(mode, 0) + 1
        self._last = runner
        return result

    def _run_other(
        self, miss: StepMiss, beside: OnlineStep, arguments: tuple[Any, ...], keywords: Any
    ) -> Any:
        """Runs a call that is not what was recorded: online, or recorded if it comes again."""
        self.last_miss = str(miss)
        if miss.of_function:  # Calls before this one may have done what was recorded.
            warnings.warn(str(miss), RuntimeWarning, stacklevel=3)
        if miss.of_gradients:  # A recording of this call would have to be without them, too.
            return self._ran("online", beside, beside(*arguments, **keywords))
        captured = self._runner
        assert isinstance(captured, CapturedStep)
        tensors, tree = flatten((arguments, keywords), "the input")
        signature = tree, tuple((t.shape, t.dtype) for t in tensors)
        if miss.of_reads:
            self._read_misses += 1
            again = self._read_misses > 1
        else:
            again = self._missed_before == signature
        self._missed_before = signature
        if again and self._captures_left > 0:
            self._captures_left -= 1
            try:
                if miss.of_reads:
                    captured._capture_outcome(tensors, tree)
                else:
                    captured._capture(tensors, tree, str(miss))
                return self._ran(self.mode, captured, captured(*arguments, **keywords))
            except Exception as error:
                reason = reason_of(error)
                if reason is None:
                    raise
                self._captures_left = 0
                self.tried.append(ModeTried(self.mode, False, f"for other inputs: {reason}"))
        return self._ran("online", beside, beside(*arguments, **keywords))

    def report(self) -> StepReport | OnlineReport:
        """Returns the report of the last step, of the mode that it ran in."""
        with self._turns:
            report = (self._last or self._runner).report()
            overheads = self._overheads.last() + report.overheads
            return dataclasses.replace(report, overheads=overheads)

    def __str__(self) -> str:
        counts = ", ".join(f"{number} in {mode} mode" for mode, number in self.calls.items())
        lines = [f"{self.mode} mode", in_lines(self.tried), f"steps: {counts or 'none yet'}"]
        if self.last_miss:
            lines.append(f"the last step that was not what was recorded: {self.last_miss}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"TrainStep({self._wanted.name!r}, {self.mode} mode, {self.calls})"

    def _repr_html_(self) -> str:
        rows = [(t.mode, ("works: " if t.works else "no: ") + t.reason) for t in self.tried]
        return table(rows, f"{self.mode} mode")


def train_step(
    step: Callable[..., Any],
    *sample: Any,
    budget: Budget = None,
    stages: Stages | None = None,
    mode: str = "auto",
    module: nn.Module | None = None,
    modules: list[nn.Module] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    unguarded: Sequence[str] = (),
    outcomes: int = 4,
    time_limit: float | str = 10.0,
    name: str = "step",
    observer: Observer | None = None,
    **keywords: Any,
) -> TrainStep:
    """Makes a training step that stays inside a budget, in the best mode that works for it.

    The modes are tried in this order, on the sample:

    - "graph": the step is recorded, planned and replayed, as by `capture()`. It is "guarded graph"
      if the step reads numbers out of tensors, which are then compared at each call.
    - "chain", if `stages` are given: the stages are planned, as by `remat()`.
    - "online": the step runs as it is written, as in `online()`.

    All modes have the bits of plain training. A call that is not what was recorded, by its shapes,
    by what Python says, or by numbers that the step reads, runs online. If it comes again, it is
    recorded, too. Where online mode does not work, it is recorded at once.

    The function runs a few times here. Parameters, buffers, gradients, optimizers, schedules of
    learning rates, gradient scalers and the random states are left as they were, as far as the
    function and `modules` show them. To record a step takes the memory of plain training;
    `mode="online"` does not record.

    Args:
        step: The function: forward, loss and backward, and more if you like.
        *sample: The arguments that the modes are tried with.
        budget: All device bytes during the step: parameters, gradients, optimizer state, inputs,
            and whatever else is live. It is a number of bytes, a text such as "8 GiB", a share
            such as "60%" of plain training's peak, "auto" for what the device has free, or None
            for no limit. For a share, the step also runs plain.
        stages: The model that the step calls, as an nn.Sequential or as a list of stages.
        mode: "auto", or the one mode that may be taken: "graph", "chain", "online" or "follow". In
            the last one nothing runs here, and the function runs at every call, beside a plan, as
            by `capture(follow=True)`.
        module: The module that the step calls and that a list of stages stands for.
        modules: As for `capture()`.
        optimizer: An optimizer whose step becomes part of this one. Gradients are freed there. In
            graph mode it must be one that `capture()` takes.
        unguarded: As for `capture()`.
        outcomes: The number of recordings for other inputs, beside the first one.
        time_limit: The time for each plan: seconds, or a text such as "10s".
        name: The name of the step in reports.
        observer: A function that is called with `Progress`.
        **keywords: The keyword arguments that the modes are tried with.

    Returns:
        The step. Call it in the training loop in place of the function, and print it to see its
        mode.

    Raises:
        BudgetError: No mode fits the budget. The message has a line for each mode.
        InputError: An argument is wrong, or no mode can run the step.

    Examples:
        >>> def train(x, y):
        ...     loss = nn.functional.cross_entropy(plain(x), y)
        ...     loss.backward()
        ...     return loss
        >>> step = reprise.train_step(train, x, y, budget="60%")
        >>> loss = step(x, y)
        >>> mode = step.mode
    """
    if mode not in _ORDERS:
        raise InputError(f"mode is one of {', '.join(_ORDERS)}, not {mode!r}")
    if isinstance(outcomes, bool) or not isinstance(outcomes, int) or outcomes < 1:
        raise InputError(f"outcomes is a number of captures from 1 on, not {outcomes!r}")
    if mode == "chain" and stages is None:
        raise InputError("chain mode needs stages=, the model that the step calls")
    owners = {"reprise.capture()": capture, "CapturedStep.plan()": CapturedStep.plan}
    refuse_astray(step, keywords, owners)
    install_cpu_allocator()
    parts = [*(modules_of(step) if modules is None else modules)]
    for given in (module, stages):
        if isinstance(given, nn.Module):
            parts.append(given)
    wanted = Wanted(
        step, budget, with_optimizers(outermost(parts), step), stages, module, None, optimizer,
        unguarded, outcomes, time_limit, name, observer,
    )  # fmt: skip
    taken = Sample(sample, keywords)
    resolved = budget_for(budget, device_of(wanted, taken))
    if resolved is not None:
        _core.resolve_budget(resolved, 1)  # It raises InputError for a text that is no budget.
    return TrainStep(wanted._replace(budget=resolved), taken, mode)
