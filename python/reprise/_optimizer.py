"""Optimizers of torch.optim, parameter by parameter: what capture(optimizer=...) needs of them."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .errors import InputError

# Their steps treat each parameter by itself. Exactly these: a derived class may do anything.
_KINDS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
)
# Options that decide whether a step needs more memory.
_MEMORY = (
    "momentum",
    "weight_decay",
    "decoupled_weight_decay",
    "nesterov",
    "amsgrad",
    "centered",
    "maximize",
)
# Variants whose steps take all parameters together, or record them for autograd.
_REFUSED = ("foreach", "fused", "capturable", "differentiable")


class ParameterSteps:
    """The optimizer's own step with one parameter in its groups at a time."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        if type(optimizer) not in _KINDS:
            names = ", ".join(kind.__name__ for kind in _KINDS)
            raise InputError(
                f"gradients can be used up one by one by {names}, not by "
                f"{type(optimizer).__name__}: its step may look at several parameters at once. "
                "Call it behind the captured step"
            )
        for group in optimizer.param_groups:
            for option in _REFUSED:
                if group.get(option):
                    raise InputError(
                        f"the optimizer's option {option} is on; its step then is another one than "
                        "parameter by parameter. Make the optimizer without it"
                    )
        self._optimizer = optimizer
        self._refuse_hooks()

    def _refuse_hooks(self) -> None:
        names = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        if any(getattr(self._optimizer, name, None) for name in names):
            raise InputError("the optimizer has step hooks, which would run for each parameter")
        everywhere = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
        of_all = sys.modules[torch.optim.Optimizer.__module__]
        if any(getattr(of_all, name, None) for name in everywhere):
            raise InputError(
                "all optimizers have step hooks (register_optimizer_step_post_hook), which would "
                "run for each parameter"
            )

    def _place(self, number: int) -> tuple[int, int]:
        for g, group in enumerate(self._optimizer.param_groups):
            if number < len(group["params"]):
                return g, number
            number -= len(group["params"])
        raise IndexError(number)

    def _parameter(self, number: int) -> torch.Tensor:
        group, at = self._place(number)
        parameter: torch.Tensor = self._optimizer.param_groups[group]["params"][at]
        return parameter

    def name(self) -> str:
        return type(self._optimizer).__name__

    def parameters(self) -> list[torch.Tensor]:
        self._refuse_hooks()  # asked for at each step, before anything is changed
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def step(self, number: int) -> None:
        groups = self._optimizer.param_groups
        chosen, at = self._place(number)
        everything = [group["params"] for group in groups]
        for g, group in enumerate(groups):
            group["params"] = everything[g][at : at + 1] if g == chosen else []
        try:
            self._optimizer.step()
        finally:
            for group, parameters in zip(groups, everything, strict=True):
                group["params"] = parameters

    def has_state(self, number: int) -> bool:
        parameter = self._parameter(number)
        return parameter in self._optimizer.state and bool(self._optimizer.state[parameter])

    def memory_key(self, number: int) -> str:
        group = self._optimizer.param_groups[self._place(number)[0]]
        return " ".join(f"{option} {bool(group.get(option))}" for option in _MEMORY)

    def twin(self, number: int, stand_in: torch.Tensor) -> ParameterSteps:
        group: dict[str, Any] = dict(self._optimizer.param_groups[self._place(number)[0]])
        group["params"] = [stand_in]
        group.pop("initial_lr", None)  # a schedule's
        kind: Any = type(self._optimizer)
        return ParameterSteps(kind([group]))
