"""The `Trainer` of the Transformers library inside a budget.

    from reprise.integrations.transformers import Trainer

    trainer = Trainer(model=model, args=args, train_dataset=data, budget="8 GiB")
    trainer.train()

`within()` puts a trainer of another class inside a budget, for example a trainer of TRL.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import transformers

from .._planning.arguments import Budget, checked_budget
from ..errors import InputError
from .steps import Mode, StepsByKind, StepsReport, by_kind

__all__ = ["Trainer", "within"]


class _Within:
    """`within()` puts this object in the place of a trainer's `training_step`."""

    def __init__(
        self, trainer: Any, budget: Budget, mode: Mode, kinds: int, time_limit: float | str
    ) -> None:
        self._trainer = trainer
        self._original = trainer.training_step
        self._budget = checked_budget(budget)
        self._mode: Mode = mode
        self._kinds = kinds
        self._time_limit = time_limit
        self._model: torch.nn.Module | None = None
        self._step: StepsByKind | None = None
        if reason := _reason_against(trainer):
            raise InputError(reason)
        _leave_what_runs_again_to_the_plan(trainer)

    def __call__(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Runs forward and backward for a batch, as the trainer's `training_step` does."""
        if self._step is None or self._model is not model:
            self._model, self._step = model, self._step_of(model)
        model.train()  # The step does it, too, and would then find other flags than at this call.
        trainer = self._trainer
        # The step gets what the trainer reads from itself, so that it is compared.
        loss: torch.Tensor = self._step(
            dict(trainer._prepare_inputs(inputs)),
            num_items_in_batch,
            trainer.current_gradient_accumulation_steps,
        )
        return loss

    def _step_of(self, model: torch.nn.Module) -> StepsByKind:
        original, trainer = self._original, self._trainer

        def step(inputs: dict[str, Any], items: Any, _accumulated: int) -> Any:
            with _prepared(trainer):
                return original(model, inputs, items)

        return by_kind(
            step,
            budget=self._budget,
            mode=self._mode,
            modules=[model],
            kinds=self._kinds,
            time_limit=self._time_limit,
        )

    def report(self) -> StepsReport:
        """Returns the mode, the budget and the peaks of the last step.

        Raises:
            InputError: No step has run yet.
        """
        if self._step is None:
            raise InputError("the trainer has run no step yet")
        return self._step.report()


@contextlib.contextmanager
def _prepared(trainer: Any) -> Iterator[None]:
    """Lets the trainer take its inputs as they are: they were prepared before the step.

    To prepare them again may be another thing: GRPO generates completions then.
    """
    own = trainer.__dict__.get("_prepare_inputs")
    trainer._prepare_inputs = _as_they_are
    try:
        yield
    finally:
        if own is None:
            del trainer._prepare_inputs
        else:
            trainer._prepare_inputs = own


def _as_they_are(inputs: Any) -> Any:
    return inputs


def within(
    trainer: Any,
    *,
    budget: Budget,
    mode: Mode = "auto",
    kinds: int = 4,
    time_limit: float | str = 10.0,
) -> Any:
    """Puts the training steps of a trainer inside a budget.

    Forward and backward of each batch run as a `steps.by_kind()`. Everything else is the
    trainer's own: accumulation, clipping, the optimizer, schedules, evaluation, saving, resuming.

    Args:
        trainer: A `transformers.Trainer`, or a trainer of a class derived from it. Its attribute
            `in_budget` has the method `report()` afterwards.
        budget: All device bytes during forward and backward, as for `steps.by_kind()`.
        mode: As for `steps.by_kind()`.
        kinds: As for `steps.by_kind()`.
        time_limit: As for `steps.by_kind()`.

    Returns:
        The trainer.

    Raises:
        InputError: The trainer has settings that exclude a plan: checkpoints of its own, a compiled
            model, or several processes.
    """
    found = _Within(trainer, budget, mode, kinds, time_limit)
    trainer.in_budget = found
    trainer.training_step = found
    return trainer


class Trainer(transformers.Trainer):  # type: ignore[misc]
    """A `transformers.Trainer` whose training steps stay inside a budget.

    Args:
        *arguments: The arguments of `transformers.Trainer`.
        budget: All device bytes during forward and backward, as for `steps.by_kind()`. None
            stands for no limit.
        mode: As for `steps.by_kind()`.
        kinds: As for `steps.by_kind()`.
        time_limit: As for `steps.by_kind()`.
        **keywords: The keyword arguments of `transformers.Trainer`.

    Raises:
        InputError: As for `within()`.
    """

    in_budget: _Within

    def __init__(
        self,
        *arguments: Any,
        budget: Budget = None,
        mode: Mode = "auto",
        kinds: int = 4,
        time_limit: float | str = 10.0,
        **keywords: Any,
    ) -> None:
        super().__init__(*arguments, **keywords)
        within(self, budget=budget, mode=mode, kinds=kinds, time_limit=time_limit)


def _leave_what_runs_again_to_the_plan(trainer: Any) -> None:
    """Switches the trainer's checkpointing off, which is on by default in TRL."""
    # Transformers 5 has two names for it.
    names = ("activation_checkpointing", "gradient_checkpointing")
    found = [name for name in names if getattr(trainer.args, name, False)]
    if not found:
        return
    for name in found:
        setattr(trainer.args, name, False)
    warnings.warn(
        f"{found[0]}=True of the trainer is switched off: the plan decides what runs again",
        RuntimeWarning,
        stacklevel=4,
    )


def _reason_against(trainer: Any) -> str | None:
    """Returns why a trainer cannot be put inside a budget, or None."""
    args = trainer.args
    if getattr(args, "torch_compile", False):
        return (
            "the trainer compiles the model (torch_compile=True): use "
            'torch.compile(model, backend="reprise") instead of this integration'
        )
    if args.world_size > 1 or args.n_gpu > 1 or trainer.is_deepspeed_enabled:
        return "the trainer runs on several devices, which the integration does not support yet"
    if hasattr(trainer.training_step, "report"):
        return "the trainer is inside a budget already"
    return None
