"""A training step for loops that other libraries own: recorded when they first call it.

`reprise.train_step()` is made from a sample. The loop of a library has none before it runs, and its
batches come in several kinds (lengths, train flags). `by_kind()` chooses a mode when a kind of
inputs first comes, on the inputs of that call. The modes and the choice are those of
`train_step()`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from .. import _core
from .._modes.layer_step import LayerStep
from .._modes.modes import (
    Choice,
    OnlineStep,
    Runner,
    Sample,
    Wanted,
    Works,
    chain_mode,
    follow_mode,
    graph_mode,
    order_of,
    share_of,
)
from .._planning.arguments import Budget, Observer, checked_budget
from .._planning.html import fields_html
from .._step.modules import modules_of
from .._step.overhead import Overhead, Overheads
from .._step.share import FixedShare, bytes_of, is_share
from .._step.tree import flatten
from .._step.turns import Turns
from ..errors import InputError

__all__ = ["Mode", "StepsByKind", "StepsReport", "by_kind"]

Mode = Literal["auto", "follow", "chain", "online", "graph"]


@dataclass(frozen=True)
class StepsReport:
    """The report of the last call of a `StepsByKind`.

    Attributes:
        mode: The mode that the step ran in: "follow", "chain", "online" or "graph".
        refused: The reasons why the modes before it were not possible, by mode.
        budget_bytes: The budget, or None for no limit.
        predicted_peak_bytes: The peak that the plan predicts, or None if the mode predicts none.
        measured_peak_bytes: The peak that was measured during the step.
        steps: The number of calls so far.
        kinds: The number of kinds of inputs that something is kept for.
        overheads: The choices of a mode, and then the captures, measurements and searches of the
            step that ran last: why, how long, and what they found.
    """

    mode: str
    refused: dict[str, str]
    budget_bytes: int | None
    predicted_peak_bytes: int | None
    measured_peak_bytes: int
    steps: int
    kinds: int
    overheads: tuple[Overhead, ...] = ()

    def __str__(self) -> str:
        budget = "none" if self.budget_bytes is None else _core.format_bytes(self.budget_bytes)
        return (
            f"step {self.steps}: {self.mode} mode, measured peak "
            f"{_core.format_bytes(self.measured_peak_bytes)}, budget {budget}"
        )

    def _repr_html_(self) -> str:
        return fields_html(self)


class StepsByKind:
    """A training step that runs inside a budget. Made by `by_kind()`.

    Attributes:
        step: The user's function.
        budget: The budget, as it was given.
        modules: The modules of the step.
        layers: The layers that chain mode runs as a chain, or None to look for them.
    """

    def __init__(self, wanted: Wanted, modes: Sequence[str], kinds: int) -> None:
        if isinstance(kinds, bool) or not isinstance(kinds, int) or kinds < 1:
            raise InputError(f"kinds is a number from 1 on, not {kinds!r}")
        self._turns = Turns()
        self._wanted, self._modes = wanted, modes
        self.step, self.budget = wanted.step, wanted.budget
        self.modules, self.layers = wanted.modules, wanted.layers
        self._most = kinds
        name = getattr(self.step, "__name__", type(self.step).__name__)
        self._overheads = Overheads(f"the step '{name}'", ("it is the first",))
        self._share: FixedShare | None = None  # as the first step has made it bytes
        # These are of all kinds, so that they have one budget.
        self._online: OnlineStep | None = None
        self._followed: Works | None = None
        self._kinds: OrderedDict[Any, Choice] = OrderedDict()
        self._steps = 0

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs one training step.

        Args:
            *arguments: The arguments of the function.
            **keywords: The keyword arguments of the function.

        Returns:
            The value that the function returns.

        Raises:
            BudgetError: The step does not fit for inputs of this kind, or a request for memory was
                refused. Everything is as before the step.
            InputError: The step runs in none of the modes. The message has the reason of each.
        """
        with self._turns:
            if self._share is None:
                return self._call(arguments, keywords)
            with self._share.told(flatten((arguments, keywords), "the input")[0]):
                return self._call(arguments, keywords)

    def _call(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        kind = self._kind(arguments, keywords)
        sample = Sample(arguments, keywords)
        choice = self._kinds.get(kind)
        if choice is None:
            why = "these inputs are of another kind" if self._kinds else "it is the first step"
            # To follow one kind more costs nothing.
            noted = None if self._followed else why
            choice = Choice(self._modes, self._make, self._wanted, sample, self._overheads, noted)
            while len(self._kinds) >= self._most:
                self._kinds.popitem(last=False)
            self._kinds[kind] = choice
        self._kinds.move_to_end(kind)
        result = choice.run(sample)
        self._steps += 1
        if self._share is None and is_share(self.budget):
            self._fix_share(sample, choice.works.runner)
        return result

    def _fix_share(self, sample: Sample, runner: Runner) -> None:
        """Makes the share bytes, for all kinds: those of the first step."""
        self._share = share_of(runner)
        if self._share is None and (budget := runner.report().budget_bytes) is not None:
            self._share = FixedShare(budget, bytes_of(flatten(tuple(sample), "the input")[0]))
        if self._share is not None:
            self._wanted = self._wanted._replace(budget=self._share.budget_bytes)

    def _make(self, mode: str, sample: Sample) -> Works:
        if mode == "graph":
            return graph_mode(self._wanted, sample)
        if mode == "chain":
            works = chain_mode(self._wanted, sample)
            assert isinstance(works.runner, LayerStep)
            result = works.runner.run_first(sample.arguments, sample.keywords)
            return works._replace(results=(result,))
        if mode == "follow":
            self._followed = self._followed or follow_mode(self._wanted, sample)
            return self._followed
        if self._online is None:
            self._online = OnlineStep(self._wanted, sample)
        return Works(self._online, "online", "the step runs as it is written")

    def _kind(self, arguments: Any, keywords: Any) -> Any:
        """Returns what the inputs and modes have to agree in for one plan to serve two calls."""
        tensors, tree = flatten((arguments, keywords), "the input")
        device = tensors[0].device.type if tensors else "cpu"
        return (
            repr(tree),
            tuple((t.shape, t.stride(), t.dtype, t.device, t.requires_grad) for t in tensors),
            (torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)),
            tuple(part.training for module in self.modules for part in module.modules()),
        )

    def report(self) -> StepsReport:
        """Returns the mode, the budget and the peaks of the last step.

        Raises:
            InputError: The step has not run yet.
        """
        if self._steps == 0:
            raise InputError("the step has not run yet")
        choice = next(reversed(self._kinds.values()))
        report = choice.works.runner.report()
        return StepsReport(
            mode=choice.mode,
            refused={one.mode: one.reason for one in choice.tried if not one.works},
            budget_bytes=report.budget_bytes,
            predicted_peak_bytes=getattr(report, "predicted_peak_bytes", None),
            measured_peak_bytes=report.measured_peak_bytes,
            steps=self._steps,
            kinds=len(self._kinds),
            overheads=self._overheads.last() + report.overheads,
        )

    def __repr__(self) -> str:
        name = getattr(self.step, "__name__", type(self.step).__name__)
        return f"StepsByKind({name!r}, {self.report() if self._steps else 'not run yet'})"

    def _repr_html_(self) -> str:
        return fields_html(self.report())


def by_kind(
    step: Callable[..., Any],
    *,
    budget: Budget = None,
    mode: Mode = "auto",
    modules: Sequence[torch.nn.Module] | None = None,
    layers: Sequence[torch.nn.Module] | None = None,
    kinds: int = 4,
    unguarded: Sequence[str] = (),
    time_limit: float | str = 10.0,
    observer: Observer | None = None,
) -> StepsByKind:
    """Makes a training step run inside a budget. Nothing is measured before the first call.

    The step does forward, loss and backward. It is called like the function, and it leaves the bits
    of the function: results, gradients, buffers and the random state. The first call with inputs of
    a new kind (shapes, types, numbers, train flags, autocast) takes the first mode that the step
    allows: follow mode, then chain mode over its repeated layers, then online mode.

    Args:
        step: The function, as for `capture()`. The optimizer's step is no part of it.
        budget: All device bytes during a step, as for `capture()` and `remat()`: a number of bytes,
            a text such as "8 GiB", a share such as "60%" of plain training's peak, "auto" for what
            the device has free, or None for no limit.
        mode: "auto", or one of "follow", "chain", "online" and "graph" if no other mode shall be
            tried. `reprise.train_step()` says what they are.
        modules: The modules of the step. None stands for the modules that the function shows.
        layers: The layers that chain mode runs as a chain, in their order. None stands for the
            list of equal layers in the modules that has the most parameters.
        kinds: The number of kinds of inputs that recordings and plans are kept for. The kind that
            ran least recently makes room for another one.
        unguarded: As for `capture()`.
        time_limit: The time for planning, for each kind: seconds, or a text such as "10s".
        observer: A function that is called with `Progress`.

    Returns:
        The step. Call it in the training loop in place of the function.

    Raises:
        InputError: An argument is wrong.

    Examples:
        >>> from reprise.integrations.steps import by_kind
        >>> def train(x, y):
        ...     loss = nn.functional.cross_entropy(plain(x), y)
        ...     loss.backward()
        ...     return loss
        >>> step = by_kind(train, budget="90%")
        >>> loss = step(x, y)
    """
    wanted = Wanted(
        step,
        checked_budget(budget),
        list(modules_of(step) if modules is None else modules),
        layers=None if layers is None else list(layers),
        unguarded=tuple(unguarded),
        time_limit=time_limit,
        observer=observer,
    )
    return StepsByKind(wanted, order_of(mode), kinds)
