"""The `Trainer` of Lightning inside a budget.

    trainer = lightning.Trainer(callbacks=[reprise.integrations.lightning.Budget("8 GiB")])

Forward and backward of each batch run as a `steps.by_kind()`. Accumulation, clipping,
precision, optimizers, schedules, validation and checkpoints stay Lightning's own.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule
from lightning.pytorch.loops.optimization.automatic import Closure, ClosureResult
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.utils._pytree import tree_map_only

from .._planning.arguments import Budget as BudgetArgument
from .._planning.arguments import checked_budget
from .._step.library import is_installed
from ..errors import InputError
from .steps import Mode, StepsByKind, StepsReport, by_kind

__all__ = ["Budget"]

# Attributes of a LightningModule whose values change from batch to batch, or that do something.
# Code that reads them in the step has to run at each batch.
_CHANGING = ("global_step", "current_epoch", "trainer", "optimizers", "lr_schedulers", "logger")
_HOOKS = ("on_before_backward", "on_after_backward")


class _StepClosure(Closure):  # type: ignore[misc]
    """A closure of Lightning whose step function does the backward pass, too.

    Gradients are dropped before the forward pass and not behind it.
    """

    @torch.enable_grad()
    def closure(self, *_: Any, **__: Any) -> Any:
        if self._zero_grad_fn is not None:
            self._zero_grad_fn()
        return self._step_fn()


class Budget(Callback):  # type: ignore[misc]
    """A callback that keeps the training steps of a Lightning trainer inside a budget.

    Args:
        budget: All device bytes during forward and backward, as for `steps.by_kind()`.
        mode: As for `steps.by_kind()`. "graph" and "chain" refuse a `training_step` that has to run
            as Python at each batch: one that uses `batch_idx`, `global_step`, `current_epoch`,
            `trainer` or a metric of TorchMetrics, or beside which the hook `on_before_backward` or
            `on_after_backward` is defined. With "auto" it runs in follow mode.
        kinds: As for `steps.by_kind()`.
        time_limit: As for `steps.by_kind()`.

    Raises:
        InputError: The budget is none. When training begins: the trainer has several devices, the
            module optimizes by hand, or `mode` excludes what the module does.
    """

    def __init__(
        self,
        budget: BudgetArgument,
        *,
        mode: Mode = "auto",
        kinds: int = 4,
        time_limit: float | str = 10.0,
    ) -> None:
        self._budget = checked_budget(budget)
        self._mode: Mode = mode
        self._kinds = kinds
        self._time_limit = time_limit
        self._step: StepsByKind | None = None
        self._original: Any = None
        self._extra: tuple[Any, ...] = ()  # what training_step() gets behind the batch
        self._optimizer: Any = None

    def report(self) -> StepsReport:
        """Returns the mode, the budget and the peaks of the last step.

        Raises:
            InputError: No step has run yet.
        """
        if self._step is None:
            raise InputError("the trainer has run no step yet")
        return self._step.report()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Takes the place of the trainer's forward and backward passes."""
        if trainer.world_size > 1:
            raise InputError(
                "the trainer runs on several devices, which the integration does not support yet"
            )
        if not pl_module.automatic_optimization:
            raise InputError(
                "the module optimizes by hand (automatic_optimization = False): call "
                "reprise.train_step() in training_step() instead"
            )
        mode = self._mode
        if reason := _must_run_each_time(trainer, pl_module):
            if mode in ("graph", "chain"):
                raise InputError(f"the step has to run as Python at each batch: {reason}")
            if mode == "auto":
                mode = "follow"  # The others run the step on trial.
        loop = trainer.fit_loop.epoch_loop.automatic_optimization
        self._step = by_kind(
            self._whole_step(trainer, pl_module),
            budget=self._budget,
            mode=mode,
            modules=[pl_module],
            kinds=self._kinds,
            # The trainer writes down what is logged. A step that reads the trainer runs as Python.
            unguarded=("module._trainer", "trainer"),
            time_limit=self._time_limit,
        )
        self._original = loop._make_closure
        loop._make_closure = functools.partial(self._make_closure, trainer, loop)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Gives the trainer its own passes back."""
        self._restore(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Gives the trainer its own passes back."""
        self._restore(trainer)

    def _restore(self, trainer: Any) -> None:
        if self._original is not None:
            trainer.fit_loop.epoch_loop.automatic_optimization._make_closure = self._original
            self._original = None

    def _whole_step(self, trainer: Any, module: Any) -> Any:
        def step(batch: Any, normalize: int) -> Any:
            with _collected_logs(module) as logs:
                output = trainer.strategy.training_step(batch, *self._extra)
            result = ClosureResult.from_training_step_output(output, normalize)
            if result.closure_loss is None:
                raise InputError("training_step() returned no loss; return one for each batch")
            trainer.strategy.backward(result.closure_loss, self._optimizer)
            loss = result.closure_loss.detach()
            return tree_map_only(torch.Tensor, torch.Tensor.detach, (loss, result.extra, logs))

        return step

    def _make_closure(
        self, trainer: Any, loop: Any, kwargs: Any, optimizer: Any, batch_idx: int
    ) -> Closure:
        step = self._step
        assert step is not None

        def run() -> Any:
            self._optimizer = optimizer
            batch, *extra = kwargs.values()
            self._extra = tuple(extra)
            loss, rest, logs = step(batch, trainer.accumulate_grad_batches)
            _log_again(trainer.lightning_module, logs)
            return ClosureResult(loss, extra=rest)

        return _StepClosure(run, None, loop._make_zero_grad_fn(batch_idx, optimizer))


@contextlib.contextmanager
def _collected_logs(module: Any) -> Iterator[list[Any]]:
    """Collects the calls of `self.log()` in the scope.

    A replay does not call it, and the trainer reads numbers that a followed step computes later.
    """
    logs: list[Any] = []

    def log(name: str, value: Any, *arguments: Any, **keywords: Any) -> None:
        logs.append((name, value, arguments, keywords))

    module.__dict__["log"] = log
    try:
        yield logs
    finally:
        module.__dict__.pop("log", None)


def _log_again(module: Any, logs: list[Any]) -> None:
    """Calls `self.log()` as the step has done, with the values of this batch."""
    before, module._current_fx_name = module._current_fx_name, "training_step"
    try:
        for name, value, arguments, keywords in logs:
            module.log(name, value, *arguments, **keywords)
    finally:
        module._current_fx_name = before


def _must_run_each_time(trainer: Any, module: Any) -> str | None:
    """Returns why `training_step` cannot be replayed or run on trial, or None."""
    for hook in _HOOKS:
        if is_overridden(hook, module, parent=LightningModule):
            return f"the module defines {hook}()"
        for callback in trainer.callbacks:
            if is_overridden(hook, callback, parent=Callback):
                return f"the callback {type(callback).__name__} defines {hook}()"
    step = inspect.unwrap(module.training_step)
    code = step.__code__
    names = _names_of(type(module), code)
    for name in _CHANGING:
        if name in names:
            return f"its code reads self.{name}"
    index = [p for p in inspect.signature(step).parameters if p not in ("self", "batch")]
    for name in index[:1] if inspect.ismethod(step) else index[1:2]:
        if name == "batch_idx" and any(_reads(i, name) for i in dis.get_instructions(code)):
            return f"its code reads {name}"
    for name, child in module.named_modules():
        if name.partition(".")[0] in names and _is_metric(child):
            return f"it updates the metric {name}"
    return None


def _reads(instruction: dis.Instruction, name: str) -> bool:
    argument = instruction.argval
    return argument == name or (isinstance(argument, tuple) and name in argument)


def _is_metric(module: Any) -> bool:
    return any(kind.__module__.startswith("torchmetrics.") for kind in type(module).__mro__)


def _names_of(kind: type, first: CodeType) -> set[str]:
    """Returns the names in a method's code, and in that of the methods of the class it names."""
    names: set[str] = set()
    todo, seen = [first], {first}
    while todo:
        code = todo.pop()
        todo += [c for c in code.co_consts if isinstance(c, CodeType)]
        for name in code.co_names:
            names.add(name)
            method = inspect.unwrap(getattr(kind, name, None))  # type: ignore[arg-type]
            inner = getattr(method, "__code__", None)
            if isinstance(inner, CodeType) and inner not in seen:
                seen.add(inner)
                if not is_installed(inner.co_filename):
                    todo.append(inner)
    return names
