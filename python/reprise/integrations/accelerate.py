"""A loop with Hugging Face Accelerate inside a budget.

    step = reprise.integrations.accelerate.train_step(accelerator, step, budget="8 GiB")

`step` is the user's function: forward, loss and `accelerator.backward(loss)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._planning.arguments import Budget, options_of
from .._step.modules import modules_of
from ..errors import InputError
from .steps import Mode, StepsReport, by_kind

__all__ = ["AcceleratedStep", "train_step"]


class AcceleratedStep:
    """A training step inside a budget, for a loop with Accelerate. Made by `train_step()`."""

    def __init__(self, accelerator: Any, step: Callable[..., Any], options: Any) -> None:
        if accelerator.num_processes > 1:
            raise InputError(
                "the accelerator runs several processes, which the integration does not support yet"
            )
        self._accelerator = accelerator

        def whole(arguments: Any, keywords: Any, _divisor: int) -> Any:
            return step(*arguments, **keywords)

        if options["modules"] is None:
            options["modules"] = modules_of(step)
        self._step = by_kind(whole, **options)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs one step: forward, loss and `accelerator.backward()`.

        Args:
            *arguments: The arguments of the function.
            **keywords: The keyword arguments of the function.

        Returns:
            The value that the function returns.
        """
        scaler = getattr(self._accelerator, "scaler", None)
        if scaler is not None and scaler.is_enabled() and scaler._scale is None:
            device = self._accelerator.device
            scaler.scale(torch.zeros((), device=device))  # The first call makes the scale.
        # accelerator.backward() divides by this number; handed over, it is compared at each call.
        divisor = self._accelerator.gradient_accumulation_steps
        return self._step(arguments, keywords, divisor)

    def report(self) -> StepsReport:
        """Returns the mode, the budget and the peaks of the last step.

        Raises:
            InputError: The step has not run yet.
        """
        return self._step.report()


def train_step(
    accelerator: Any,
    step: Callable[..., Any],
    *,
    budget: Budget,
    mode: Mode = "auto",
    modules: Sequence[torch.nn.Module] | None = None,
    layers: Sequence[torch.nn.Module] | None = None,
    kinds: int = 4,
    time_limit: float | str = 10.0,
) -> AcceleratedStep:
    """Puts a training step that calls `accelerator.backward()` inside a budget.

    Make the step after `accelerator.prepare()`. Accumulation (`accelerator.accumulate`), clipping,
    the optimizer and the schedules stay in the loop as they are.

    Args:
        accelerator: The accelerator.
        step: The function: forward, loss and `accelerator.backward(loss)`.
        budget: All device bytes during the step, as for `steps.by_kind()`.
        mode: As for `steps.by_kind()`.
        modules: The modules of the step. None stands for the modules that the function shows.
        layers: As for `steps.by_kind()`.
        kinds: As for `steps.by_kind()`.
        time_limit: As for `steps.by_kind()`.

    Returns:
        The step. Call it in the loop in place of the function.

    Raises:
        InputError: The accelerator runs several processes, or an argument is wrong.
    """
    return AcceleratedStep(accelerator, step, options_of(train_step, locals()))
