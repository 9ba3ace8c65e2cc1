"""Optimizers of torch.optim that step one parameter at a time, for `capture(optimizer=...)`."""

from __future__ import annotations

import sys
from typing import Any

import torch

from .._step.shards import keep_shard
from ..errors import InputError

# The steps of these optimizers treat each parameter by itself. A class that is derived from one of
# them may do anything, so it is refused.
_KINDS = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adagrad,
    torch.optim.RMSprop,
)
# These options decide how much memory a step needs.
_MEMORY = (
    "momentum",
    "weight_decay",
    "decoupled_weight_decay",
    "nesterov",
    "amsgrad",
    "centered",
    "maximize",
)
# A step with one of these options takes all parameters together, or records itself for autograd.
_REFUSED = ("foreach", "fused", "capturable", "differentiable")


def takes(optimizer: torch.optim.Optimizer) -> bool:
    """Returns whether the optimizer can step one parameter at a time, as it was made."""
    options = (group.get(option) for group in optimizer.param_groups for option in _REFUSED)
    return type(optimizer) in _KINDS and not any(options)


class ParameterSteps:
    """An optimizer whose own `step()` is called with one parameter in its groups at a time.

    The C++ runtime calls these methods (`PythonOptimizer` in captured_step.cc). The number of a
    parameter is its position in `parameters()`. `ranks` is the number of processes that share the
    state, if it is sharded.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, ranks: int = 1) -> None:
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
                        "parameter by parameter. Make the optimizer without it, or call its step "
                        "behind the captured step"
                    )
        self._optimizer = optimizer
        self._ranks = ranks
        self._refuse_hooks()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer."""
        return self._optimizer

    def _refuse_hooks(self) -> None:
        """Raises InputError if the optimizer has step hooks."""
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
        """Returns the group of a parameter, and its position in the group."""
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
        """Returns the name of the optimizer, for example "SGD"."""
        return type(self._optimizer).__name__

    def parameters(self) -> list[torch.Tensor]:
        """Returns the parameters of all groups in their order. Raises InputError for hooks."""
        # The runtime calls this method at each step, before it changes anything.
        self._refuse_hooks()
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def step(self, number: int) -> None:
        """Updates one parameter from its gradient, as if it were the only parameter."""
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
        """Returns whether the optimizer keeps state for a parameter. Its first step makes it."""
        parameter = self._parameter(number)
        return parameter in self._optimizer.state and bool(self._optimizer.state[parameter])

    def memory_key(self, number: int) -> str:
        """Returns a text of a parameter's options. Where it is equal, steps need equal memory."""
        group = self._optimizer.param_groups[self._place(number)[0]]
        return " ".join(f"{option} {bool(group.get(option))}" for option in _MEMORY)

    def state_of(self, number: int) -> list[torch.Tensor]:
        """Returns the tensors of a parameter's state that its update changes in place."""
        parameter = self._parameter(number)
        state = self._optimizer.state.get(parameter, {})
        return [value for value in state.values() if isinstance(value, torch.Tensor)]

    def keep_state_of(self, numbers: list[int]) -> None:
        """Drops the state of all parameters but these, because other processes keep it."""
        parameters = self.parameters()
        keep_shard(self._optimizer, (parameters[number] for number in numbers), self._ranks)

    def twin(self, number: int, stand_in: torch.Tensor) -> ParameterSteps:
        """Returns a new optimizer with a parameter's options, for a stand-in of the parameter."""
        group: dict[str, Any] = dict(self._optimizer.param_groups[self._place(number)[0]])
        group["params"] = [stand_in]
        group.pop("initial_lr", None)  # A schedule of learning rates has put this key there.
        kind: Any = type(self._optimizer)
        return ParameterSteps(kind([group]))
