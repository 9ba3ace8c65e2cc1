"""A captured step that clips by the norm of all gradients, in the form that is faster."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._planning.arguments import Budget
from ..errors import BudgetError, InputError
from .capture import capture
from .captured_step import CapturedStep
from .clipping import clipped_backward
from .keywords import refuse_astray

# Two passes take about twice the time of one, so they are not tried beside a faster plan.
_TWO_PASSES = 1.5


def capture_clipped(
    loss: Callable[..., torch.Tensor],
    *sample: Any,
    module: nn.Module,
    max_norm: float,
    optimizer: torch.optim.Optimizer,
    budget: Budget = None,
    time_limit: float | str = 10.0,
    threads: int = 0,
    **options: Any,
) -> CapturedStep:
    """Captures and plans a step that clips by the norm of all gradients and steps the optimizer.

    There are two forms with the same bits. In one, all gradients are held until their norm is
    known. In the other, `clipped_backward()` makes them twice and holds none, in about twice the
    time. The step is captured and planned with gradients held. If that does not fit, or takes more
    than 1.5 times the time of the step without a budget, it is captured in two passes, too, and the
    faster plan is kept.

    Args:
        loss: A function that computes the loss. Two passes call it twice, and are left out if it
            draws random numbers.
        *sample: The arguments that the function is recorded with.
        module: The module whose parameters get gradients.
        max_norm: The largest norm.
        optimizer: As for `capture()`.
        budget: As for `CapturedStep.plan()`. A share is one of the step with gradients held.
        time_limit: As for `CapturedStep.plan()`, for each form.
        threads: As for `CapturedStep.plan()`.
        **options: Other keyword arguments of `capture()`.

    Returns:
        The captured step. Its plan is in force. It returns the loss and the norm of all gradients
        before clipping. The name of its graph ends with "gradients held" or "two passes".

    Raises:
        BudgetError: Neither form fits. It is the error of the form that needs less.
        InputError: As for `capture()`.

    Examples:
        >>> def loss_of(x, y):
        ...     return nn.functional.cross_entropy(plain(x), y)
        >>> clipping = {"module": plain, "max_norm": 1.0, "optimizer": optimizer}
        >>> captured = reprise.capture_clipped(loss_of, x, y, **clipping)
        >>> value, norm = captured(x, y)
    """

    def held(*arguments: Any, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
        value = loss(*arguments, **keywords)
        value.backward()  # type: ignore[no-untyped-call]
        return value, nn.utils.clip_grad_norm_(module.parameters(), max_norm)

    def made_again(*arguments: Any, **keywords: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return clipped_backward(lambda: loss(*arguments, **keywords), module, max_norm)

    taken = inspect.signature(capture).parameters
    strange = {name: value for name, value in options.items() if name not in taken}
    refuse_astray(loss, strange, {"CapturedStep.plan()": CapturedStep.plan})
    name = options.pop("name", "step")
    limits: dict[str, Any] = {"time_limit": time_limit, "threads": threads}
    options = {"modules": [module], **options, "optimizer": optimizer}
    step = capture(held, *sample, name=f"{name}, gradients held", **options)
    refused: BudgetError | None = None
    try:
        found = step.plan(budget=budget, **limits)
        assert found.plan is not None
        if found.plan.time_ns <= _TWO_PASSES * found.baseline.time_ns:
            return step
        limit, time = found.budget_bytes, found.plan.time_ns
    except BudgetError as error:
        refused, limit, time = error, error.budget, 0
    try:
        other = capture(made_again, *sample, name=f"{name}, two passes", **options)
        answer = other.plan(budget=limit, **limits)
    except BudgetError as error:
        if refused is None:
            return step
        raise min(refused, error, key=lambda one: one.requested) from None
    except InputError:  # The loss draws random numbers.
        if refused is None:
            return step
        raise refused from None
    assert answer.plan is not None
    return other if refused is not None or answer.plan.time_ns < time else step
