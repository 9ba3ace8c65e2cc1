"""Micro-batches: gradient accumulation, captured and planned as one step."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from .._planning.arguments import Budget, Observer, native_options, options_of
from .._planning.document import Path
from .._planning.result import PlanResult, result_of
from .._step.memory import budget_for
from .._step.modules import modules_of
from .._torch import _runtime
from ..errors import InputError
from .captured_step import CapturedStep
from .recorded import RecordedFunction
from .request import Request


class PartsTried(NamedTuple):
    """The answer of the planner for one number of parts.

    Attributes:
        parts: The number of parts.
        result: The answer of the planner.
    """

    parts: int
    result: PlanResult


class MicroBatchedStep(CapturedStep):
    """A captured step in parts along the batch. Made by `micro_batches()`.

    Attributes:
        parts: The number of parts.
        tried: The numbers of parts that were tried, with the answers of the planner.
    """

    parts: int
    tried: list[PartsTried]

    def __init__(
        self,
        numbers: Sequence[int],
        body: Callable[..., Any] | None,
        plan: dict[str, Any],
        request: Request,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> None:
        self._numbers = list(numbers)
        self._body = body
        self._first_plan = plan
        super().__init__(request, arguments, keywords)

    def _functions(self) -> list[Callable[..., Any]]:
        return super()._functions() + ([] if self._body is None else [self._body])

    def _make(
        self, recorded: RecordedFunction, tensors: list[torch.Tensor], options: dict[str, Any]
    ) -> _runtime.CapturedStep:
        """Records and plans the step in each number of parts, and keeps the fastest plan."""
        plan = self._plan_options
        if plan is None:
            budget = budget_for(self._first_plan["budget"], tensors[0].device)
            plan = native_options(self._first_plan | {"budget": budget})
        body = None
        if self._body is not None:
            body = RecordedFunction(self._body, recorded.inputs)
            body.after_run = recorded.notify
            body.comparing = lambda: recorded.comparing()
        part = recorded.part if body is None else functools.partial(recorded.behind, body)
        step, self.parts, tried = _runtime.CapturedStep.in_parts(
            part, body, tensors, parts=self._numbers, plan=plan, capture=options
        )
        self.tried = [PartsTried(parts, result_of(result)) for parts, result in tried]
        self._keep_readable(plan)
        # If the step is captured again for other inputs, it keeps its number of parts.
        self._numbers = [self.parts]
        if self._plan_options is None:
            budget_bytes = result_of(step.planned()).budget_bytes
            self._plan_options = plan | {"budget": budget_bytes, "machine": step.machine()}
        return step


def micro_batches(
    part: Callable[..., Any],
    *sample: Any,
    body: Callable[..., Any] | None = None,
    budget: Budget = None,
    parts: Sequence[int] = (1, 2, 4, 8, 16),
    planner: str | None = None,
    time_limit: float | str = 10.0,
    threads: int = 0,
    enforce: bool = True,
    arena: bool = True,
    device_graph: bool = False,
    offload: str | None = None,
    machine: Path | dict[str, Any] | None = None,
    offload_optimizer: bool = False,
    offload_parameters: bool = False,
    modules: list[torch.nn.Module] | None = None,
    on_miss: str = "refuse",
    outcomes: int = 4,
    alternatives: Sequence[str] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    unguarded: Sequence[str] = (),
    lockstep: str = "sparse",
    name: str = "step",
    observer: Observer | None = None,
    cache: Path | None = None,
    process_group: Any = None,
    bucket_cap_mb: float | None = None,
    shard_optimizer: bool = False,
    other_devices: Sequence[torch.device | str] = (),
    share_work: Any = None,
    **keywords: Any,
) -> MicroBatchedStep:
    """Captures and plans a whole training step in parts along the batch.

    This is gradient accumulation as one step, in as many parts as make it the fastest within the
    budget. The bits are those of accumulating by hand and not those of the whole batch at once:
    sums are rounded in another order, each part draws its own random numbers, and a batch norm in
    training mode sees the rows of its part.

    Each number of parts is captured at the memory that the step takes without a plan. If the
    machine has no room for the whole batch, leave 1 out of `parts`.

    Args:
        part: The function `part(*inputs, share=..., **keywords)`: forward, loss and backward of
            some rows. `share` is the number of these rows over the number of all rows. If the loss
            is a mean over rows, multiply it by `share` before `backward()`. The results of the
            function are added up over the parts.
        *sample: The inputs for the whole batch. Each input that is as long in dimension 0 as the
            first one is divided: part k of n has the rows from rows * k // n to
            rows * (k + 1) // n. The others are given as they are.
        body: The function `body(*inputs, **keywords)` that the whole batch goes through first,
            batch norms included. Only the tail of the step is then in parts:
            `part(*results, share=...)` gets rows of what the body returned, a tensor or a tuple of
            tensors. Forward and backward of each part run together, and then the backward of the
            body runs.
        budget: As for `CapturedStep.plan()`. A share is of the plain peak with the smallest number
            of parts that was tried.
        parts: The numbers of parts to try, in ascending order. The search ends when two in a row
            are slower than one before them, or when a plan takes no more time than the same
            number of parts without a budget.
        planner: As for `CapturedStep.plan()`.
        time_limit: As for `CapturedStep.plan()`, for each number of parts.
        threads, enforce, arena, device_graph, offload, machine, offload_optimizer,
        offload_parameters: As for `CapturedStep.plan()`.
        modules, on_miss, outcomes, alternatives, optimizer, unguarded, lockstep, name, observer,
        cache: As for `capture()`.
        process_group: As for `capture()`. The gradients of all parts are added up first, and then
            averaged, as by accumulation with `no_sync()`. `parts` is a single number then.
        bucket_cap_mb, shard_optimizer, other_devices: As for `capture()`.
        share_work: As for `capture()`. `parts` is a single number then.
        **keywords: The keyword arguments that the functions are recorded with.

    Returns:
        The captured step with the fastest plan. Call it with the whole batch.

    Raises:
        BudgetError: No number of parts has a plan within the budget.
        InputError: The batch has fewer rows than every number of parts, or the step cannot be
            captured.

    Examples:
        >>> def part(x, y, share):
        ...     loss = share * nn.functional.cross_entropy(plain(x), y)
        ...     loss.backward()
        ...     return loss
        >>> step = reprise.micro_batches(part, x, y, budget="60%", parts=[2, 4])
        >>> loss = step(x, y)
    """
    if not all(isinstance(number, int) for number in parts):
        raise InputError(f"parts= are whole numbers, not {parts!r}")
    if modules is None:
        modules = modules_of(part) + ([] if body is None else modules_of(body))
    given = options_of(micro_batches, locals())
    # Each number of parts is recorded plain.
    recorded = given | {"step": part, "modules": modules, "budget": None}
    plan = options_of(CapturedStep.plan, given)
    return MicroBatchedStep(parts, body, plan, Request.of(recorded), sample, keywords)
