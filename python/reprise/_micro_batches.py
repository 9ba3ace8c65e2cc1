"""Steps in parts along the batch: gradient accumulation, captured and planned as one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from ._capture import CapturedStep, _Recorded, plan_options
from ._planning import Budget, Observer, PlanResult, result_of
from ._torch import _runtime, budget_for, modules_of
from .errors import InputError


class PartsTried(NamedTuple):
    """What planning a step in so many parts came to."""

    parts: int
    result: PlanResult


class MicroBatchedStep(CapturedStep):
    """A captured step in `parts` parts along the batch. Made by micro_batches()."""

    parts: int
    tried: list[PartsTried]

    def __init__(
        self,
        numbers: Sequence[int],
        body: Callable[..., Any] | None,
        budget: Budget,
        plan: dict[str, Any],
        **capture: Any,
    ) -> None:
        self._numbers = list(numbers)
        self._body = body
        self._budget = budget
        self._first_plan = plan
        super().__init__(**capture)

    def _record(
        self, recorded: _Recorded, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> _runtime.CapturedStep:
        plan = self._plan_options
        if plan is None:
            budget = budget_for(self._budget, tensors[0].device)
            plan = plan_options(budget=budget, **self._first_plan)
        body = None if self._body is None else _Recorded(self._body, recorded.inputs)
        part = recorded.part if body is None else functools.partial(recorded.behind, body)
        step, self.parts, tried = _runtime.CapturedStep.in_parts(
            part, body, tensors, parts=self._numbers, plan=plan, **options
        )
        self.tried = [PartsTried(parts, result_of(result)) for parts, result in tried]
        # Captured again for other inputs, it stays what it is.
        self._numbers = [self.parts]
        if self._plan_options is None:
            self._plan_options = plan | {"budget": result_of(step.planned()).budget_bytes}
        return step


def micro_batches(
    part: Callable[..., Any],
    *sample: Any,
    body: Callable[..., Any] | None = None,
    budget: Budget = None,
    parts: Sequence[int] = (1, 2, 4, 8, 16),
    planner: str = "graph",
    time_limit: float | str = 10.0,
    threads: int = 0,
    enforce: bool = True,
    arena: bool = True,
    modules: list[torch.nn.Module] | None = None,
    on_miss: str = "refuse",
    alternatives: Sequence[str] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    name: str = "step",
    observer: Observer | None = None,
    **keywords: Any,
) -> MicroBatchedStep:
    """A whole training step in parts along the batch, as gradient accumulation runs it, captured
    and planned as one; in as many parts as make it the fastest within the budget.

    `part(*inputs, share=..., **keywords)`: forward, loss and backward of some rows. `share` is
    these rows over all rows: multiply the loss, a mean over rows, by it before backward(). What it
    returns is added up over the parts. All inputs that are as long in dimension 0 as the first are
    divided; the others are given as they are. Part k of n has the rows from rows * k // n to
    rows * (k + 1) // n. The step is called with the whole batch.

    `body(*inputs, **keywords)`: what the whole batch goes through first, batch norms and all. Then
    only the tail of the step is in parts: `part(*results, share=...)` gets rows of what the body
    returned, a tensor or a tuple of what it needs (activations, targets), forward and backward of
    each part run together, and then the backward of the body.

    `parts`: the numbers to try, in ascending order, until two in a row are slower than one before
    them, or one costs no time at all. Each is captured at the memory that it takes without a plan:
    where the whole batch does not fit the machine, leave out 1. A share of the budget ("30%") is of
    the plain peak with the smallest of them; the time limit is for each.

    The bits are those of accumulating by hand, not those of the whole batch at once: sums are
    rounded in another order, each part draws its own random numbers, and a batch norm in training
    mode sees the rows of its part.

    The other arguments are those of capture() and CapturedStep.plan(). BudgetError when no number
    of parts has a plan within the budget; InputError for fewer rows than parts.
    """
    if not all(isinstance(number, int) for number in parts):
        raise InputError(f"parts= are whole numbers, not {parts!r}")
    if modules is None:
        modules = modules_of(part) + ([] if body is None else modules_of(body))
    return MicroBatchedStep(
        parts,
        body,
        budget,
        {
            "planner": planner,
            "time_limit": time_limit,
            "threads": threads,
            "enforce": enforce,
            "arena": arena,
            "observer": observer,
        },
        step=part,
        arguments=sample,
        keywords=keywords,
        modules=modules,
        on_miss=on_miss,
        alternatives=alternatives,
        optimizer=optimizer,
        name=name,
        observer=observer,
    )
