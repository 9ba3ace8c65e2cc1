"""One call for every training step: `train_step()` takes the best mode that works."""

from __future__ import annotations

import dataclasses
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
from .._step.share import is_share
from .._step.stages import Stages
from .._step.tree import flatten
from .._step.turns import OfThisProcess, Turns
from ..errors import InputError
from .modes import (
    Choice,
    ModeTried,
    OnlineStep,
    Sample,
    Wanted,
    Works,
    chain_mode,
    device_of,
    follow_mode,
    graph_mode,
    in_lines,
    order_of,
    share_of,
)
from .online import OnlineReport


class TrainStep(OfThisProcess):
    """A training step inside a budget, in the best mode that works. Made by `train_step()`.

    It is called like the function. `str()` says which mode was taken, and why.

    Attributes:
        calls: The number of calls that ran in each mode.
    """

    calls: dict[str, int]

    def __init__(self, wanted: Wanted, sample: Sample, mode: str) -> None:
        self._turns = Turns()
        self._wanted = wanted
        self.calls = {}
        self._overheads = Overheads(f"the step '{wanted.name}'", ("it is the first",))
        order = order_of(mode, chain=wanted.stages is not None)
        why = "it is the first step"
        self._choice = Choice(order, self._make, wanted, sample, self._overheads, why)

    @property
    def mode(self) -> str:
        """The mode that was taken: "follow", "graph", "guarded graph", "chain" or "online"."""
        return self._choice.works.mode

    @property
    def tried(self) -> list[ModeTried]:
        """The modes that were tried, in their order, with the reasons."""
        return self._choice.tried

    @property
    def last_miss(self) -> str:
        """The difference at the last call that the recordings did not fit, or ""."""
        runner = self._choice.works.runner
        return runner._last_miss() if isinstance(runner, CapturedStep) else ""

    def _make(self, mode: str, sample: Sample) -> Works:
        if mode == "follow":
            return follow_mode(self._wanted, sample)
        tensors, _ = flatten(tuple(sample), "the sample")
        optimizers = optimizers_of(self._wanted.step)
        if self._wanted.optimizer is not None:
            optimizers.append(self._wanted.optimizer)
        before = Before(
            [self._wanted.step],
            self._wanted.modules,
            optimizers,
            tensors,
            schedules_of(self._wanted.step),
        )
        recorded = False
        try:
            if mode == "chain":
                return chain_mode(self._wanted, sample)
            if mode == "online":
                return self._try_online(sample, before)
            works = graph_mode(self._wanted, sample)
            recorded = True
            return works
        finally:
            # A recorded step has to find what it made in Python at its first run.
            before.put_back(python=not recorded)

    def _try_online(self, sample: Sample, before: Before) -> Works:
        runner = OnlineStep(self._wanted, sample)
        try:
            runner.measure(sample)
        finally:
            before.put_back()
        runner.try_once(sample)
        return Works(runner, "online", "the step ran inside the budget as it is written")

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
            result = self._choice.run(Sample(arguments, keywords))
            self.calls[self.mode] = self.calls.get(self.mode, 0) + 1
            if is_share(self._wanted.budget) and (share := share_of(self._choice.works.runner)):
                # All modes have the same bytes.
                self._wanted = self._wanted._replace(budget=share.budget_bytes)
            return result

    def report(self) -> StepReport | OnlineReport:
        """Returns the report of the last step, of the mode that it ran in."""
        with self._turns:
            report = self._choice.works.runner.report()
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
    outcomes: int | None = None,
    time_limit: float | str = 10.0,
    name: str = "step",
    observer: Observer | None = None,
    **keywords: Any,
) -> TrainStep:
    """Makes a training step that stays inside a budget, in the best mode that works for it.

    The first of these modes is taken. If it fails, now or at a later call, the next one runs the
    call:

    - "follow": the function runs at every call, beside a plan, as by `capture(follow=True)`. A call
      that is not what was recorded goes on as it is written, in online mode on the CPU.
    - "chain", if `stages` are given: the stages are planned, as by `remat()`.
    - "online": the step runs as it is written, as in `online()`.

    `mode="graph"` takes the fourth one, in which the function does not run any more: the step is
    recorded, planned and replayed, as by `capture(on_miss="recapture")`. It is "guarded graph" if
    the step reads numbers out of tensors, which are then compared at each call.

    All modes have the bits of plain training. In follow mode nothing runs here. The other modes run
    the function a few times. Parameters, buffers, gradients, optimizers, schedules of learning
    rates, gradient scalers and the random states are left as they were, as far as the function and
    `modules` show them. To record a step in graph mode takes the memory of plain training.

    Args:
        step: The function: forward, loss and backward, and more if you like.
        *sample: The arguments that modes are tried with.
        budget: All device bytes during the step: parameters, gradients, optimizer state, inputs,
            and whatever else is live. It is a number of bytes, a text such as "8 GiB", a share
            such as "60%" of plain training's peak, "auto" for what the device has free, or None
            for no limit. For a share, the step runs plain once.
        stages: The model that the step calls, as an nn.Sequential or as a list of stages.
        mode: "auto", or the one mode that may be taken: "follow", "chain", "online" or "graph".
        module: The module that the step calls and that a list of stages stands for.
        modules: As for `capture()`.
        optimizer: An optimizer whose step becomes part of this one. Gradients are freed there. If
            it is none that `capture()` takes, the step runs online.
        unguarded: As for `capture()`.
        outcomes: The number of recordings that are kept.
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
        >>> step.mode
        'follow'
    """
    order_of(mode)  # It raises InputError for what is no mode.
    if outcomes is not None and (type(outcomes) is not int or outcomes < 1):
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
