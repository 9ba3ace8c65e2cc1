"""Some calls move a training loop on. A captured step must not make them.

The step of an optimizer, of a schedule or of a gradient scaler changes values of Python: a count of
steps, a learning rate, the state of the scaler. The update of an averaged model changes parameters.
A replay makes none of these changes, so such a call is refused while a step is recorded, before the
call changes anything.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim import lr_scheduler as schedulers
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel

from .._step.returned import place
from ..errors import InputError
from .optimizer import takes

# Classes, each with its methods that move a loop on.
_METHODS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (schedulers.LRScheduler, ("step",)),
    (torch.amp.GradScaler, ("unscale_", "step", "update")),
    (AveragedModel, ("update_parameters",)),
)


def _refuse(call: str, advice: str) -> InputError:
    return InputError(
        f"the step cannot be captured: it calls {call} at {place()}, which a replay would not do. "
        f"{advice}"
    )


def _classes(first: type) -> Iterator[type[Any]]:
    """Yields a class and all classes that are derived from it."""
    yield first
    for kind in list[type[Any]](first.__subclasses__()):
        yield from _classes(kind)


def _refusing(original: Callable[..., Any], owner: int, name: str) -> Callable[..., Any]:
    """Returns a method that refuses to be called by the thread that records a step."""

    @functools.wraps(original)
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        is_off = isinstance(self, torch.amp.GradScaler) and not self.is_enabled()
        if threading.get_ident() != owner or is_off:
            return original(self, *arguments, **keywords)
        raise _refuse(f"{type(self).__name__}.{name}()", "Call it behind the captured step")

    return method


@contextlib.contextmanager
def no_updates(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """While the scope lasts, calls of this thread that move a training loop on raise InputError.

    These are the steps of optimizers that have gradients of the modules, of schedules of learning
    rates, of gradient scalers (`unscale_()`, `step()`, `update()`), and of averaged models.

    Args:
        modules: The modules whose parameters must not be updated.
    """
    owner = threading.get_ident()
    known = {id(p) for module in modules for p in module.parameters()}

    def before(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        parameters = (p for group in optimizer.param_groups for p in group["params"])
        updates = any(p.grad is not None and id(p) in known for p in parameters)
        if threading.get_ident() != owner or not updates:
            return
        advice = "Call it behind the captured step"
        if takes(optimizer):
            advice += (
                ", or leave it out and give it to the step, optimizer=optimizer, which frees each "
                "gradient as soon as it is used"
            )
        raise _refuse(f"{type(optimizer).__name__}.step()", advice)

    methods = [
        (kind, name)
        for first, names in _METHODS
        for kind in _classes(first)
        for name in names
        if name in kind.__dict__
    ]
    originals = [(kind, name, kind.__dict__[name]) for kind, name in methods]
    handle = register_optimizer_step_pre_hook(before)
    try:
        for kind, name, original in originals:
            setattr(kind, name, _refusing(original, owner, name))
        yield
    finally:
        handle.remove()
        for kind, name, original in originals:
            setattr(kind, name, original)
