"""Stages whose parameters are sharded over ranks by `torch.distributed.fsdp.fully_shard` (FSDP2).

A rank holds a part of each parameter. A stage gathers its parameters while it runs, forward and
backward, and each rank gets its part of the summed gradients. PyTorch does all this by hooks of the
stage. This module finds the parameters, checks that a plan can count what the hooks do, and hides
gradients while stages are measured.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .._step.modules import modules_of
from .._step.process_group import name_of_group
from .._step.stages import NamedStages
from ..errors import InputError
from .collectives import GatherParameters, ReduceGradients


def _is_sharded(module: Any) -> bool:
    if not torch.distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def _state_of(module: Any) -> Any:
    return module._get_fsdp_state()


def _groups_of(module: Any) -> list[Any]:
    """Returns the parameters of a sharded module that are gathered together, as groups."""
    state = _state_of(module)
    several = getattr(state, "_fsdp_param_groups", None)  # One group before PyTorch 2.13.
    return list(several) if several is not None else [g for g in [state._fsdp_param_group] if g]


class ShardedStages:
    """The sharded parameters of all stages of a model.

    Attributes:
        group: The process group over which all of them are sharded.
    """

    def __init__(self, stages: NamedStages, root: nn.Module | None) -> None:
        self._names = [name for name, _ in stages]
        self._modules: list[list[Any]] = [
            [m for used in modules_of(stage) for m in used.modules() if _is_sharded(m)]
            for _, stage in stages
        ]
        self._groups = [[g for m in own for g in _groups_of(m)] for own in self._modules]
        self._roots: list[Any] = [root] if _is_sharded(root) else []
        self._initialize()
        self.group: Any = None
        seen: dict[int, str] = {}
        for name, own, groups in zip(self._names, self._modules, self._groups, strict=True):
            for module in own:
                if seen.setdefault(id(module), name) != name:
                    raise InputError(
                        f"stages '{seen[id(module)]}' and '{name}' share a module that fully_shard "
                        "was applied to; a plan counts its gradients once"
                    )
                self._check_module(name, module)
            for group in groups:
                self._check_group(name, group)

    @staticmethod
    def find(stages: NamedStages, root: nn.Module | None) -> ShardedStages | None:
        """Returns the sharded parameters of the stages, or None if there are none.

        Raises:
            InputError: The parameters are sharded in a way that a plan cannot count.
        """
        used = [module for _, stage in stages for module in modules_of(stage)]
        if not any(_is_sharded(part) for module in used for part in module.modules()):
            return None
        gc.collect()  # Sharded modules are in circles, and must not go while others are measured.
        found = ShardedStages(stages, root)
        found._check_parameters(stages)
        return found

    def _initialize(self) -> None:
        """Lets stages give gathered parameters back behind their forward.

        FSDP2 keeps those of the outermost module that runs. That is the model, whose forward a plan
        does not call, and without it each stage.
        """
        for root in self._roots:
            _state_of(root)._lazy_init()
        for own in self._modules:
            for module in own:
                state = _state_of(module)
                if not self._roots and state._auto_reshard_after_forward:
                    module.set_reshard_after_forward(True, recurse=False)
                # A stage may not gather the parameters of another one in its backward.
                if not state._states_to_backward_prefetch:
                    module.set_modules_to_backward_prefetch([module])
                for group in _groups_of(module):
                    _make_exact(group)

    def _check_module(self, name: str, module: Any) -> None:
        state = _state_of(module)
        others = [s for s in state._states_to_backward_prefetch if s is not state]
        if state._states_to_forward_prefetch or others:
            raise InputError(
                f"stage '{name}' gathers the parameters of other modules early "
                "(set_modules_to_forward_prefetch or set_modules_to_backward_prefetch), which a "
                "plan does not count: leave these calls out"
            )

    def _check_group(self, name: str, group: Any) -> None:
        mesh = group.mesh_info.mesh
        if mesh.ndim != 1 or not hasattr(group.mesh_info, "shard_process_group"):
            raise InputError(
                f"stage '{name}' is sharded over a mesh of {mesh.ndim} dimensions; a plan counts "
                "parameters that are sharded over all ranks of one group (a mesh of one dimension)"
            )
        if type(group.offload_policy).__name__ != "OffloadPolicy":
            raise InputError(
                f"the parameters of stage '{name}' move between host and device "
                f"({type(group.offload_policy).__name__}), which a plan does not count: leave "
                "offload_policy= out"
            )
        if not group._reshard_after_forward or group._use_post_forward_mesh:
            raise InputError(
                f"stage '{name}' keeps gathered parameters from its forward to its backward "
                "(reshard_after_forward=False, or a number), which a plan does not count: leave "
                "reshard_after_forward= out, or give True"
            )
        process_group = group.mesh_info.shard_process_group
        if self.group is None:
            self.group = process_group
        elif self.group.group_name != process_group.group_name:
            raise InputError(
                f"stage '{name}' is sharded over another process group than the stages before it; "
                "ranks plan together in one group"
            )

    def _check_parameters(self, stages: NamedStages) -> None:
        """Refuses stages whose parameters a module outside them gathers."""
        for (name, stage), groups in zip(stages, self._groups, strict=True):
            own = {id(p.sharded_param) for group in groups for p in group.fsdp_params}
            for module in modules_of(stage):
                for parameter_name, parameter in module.named_parameters():
                    if hasattr(parameter, "_local_tensor") and id(parameter) not in own:
                        raise InputError(
                            f"parameter '{parameter_name}' of stage '{name}' is sharded with the "
                            "whole model, or by something else than fully_shard. A plan runs the "
                            "stages and not the whole model: call fully_shard on the stage, too"
                        )

    def _all(self) -> list[Any]:
        return [p for groups in self._groups for group in groups for p in group.fsdp_params]

    def settle(self) -> None:
        """Makes the stages ready for a step, also if the last one has failed.

        Raises:
            InputError: Gradients would not be summed over the ranks.
        """
        for name, own, groups in zip(self._names, self._modules, self._groups, strict=True):
            if any(_state_of(m)._training_state.name != "IDLE" for m in own):
                for module in self._roots or own:
                    module.reset_iter_state()
            if any(not group.reduce_grads for group in groups):
                raise InputError(
                    f"stage '{name}' keeps whole gradients (set_requires_gradient_sync(False)), "
                    "which a plan does not count: let every backward sum them over the ranks"
                )

    def _resident(self) -> list[torch.Tensor]:
        """Returns the parts of parameters and gradients that this rank holds."""
        held = []
        for parameter in self._all():
            held.append(parameter.sharded_param._local_tensor)
            if parameter.sharded_param.grad is not None:
                held.append(parameter.sharded_param.grad._local_tensor)
        return held

    def calls(self, calls: list[Callable[..., Any]]) -> list[Callable[..., Any]]:
        """Returns functions that run the stages, and give back what these have gathered.

        FSDP2 keeps it when a forward runs within a backward, where a plan runs stages again.
        """
        return [
            _ReshardingCall(call, own) if own else call
            for call, own in zip(calls, self._modules, strict=True)
        ]

    def argument(self) -> Any:
        """Returns what the runtime has to know."""
        return (
            name_of_group(self.group),
            [p.sharded_param for p in self._all()],
            self._resident,
            [_functions_of(groups) if groups else None for groups in self._groups],
        )


def _make_exact(group: Any) -> None:
    """Lets a group of parameters use no more memory in one run than in another."""
    if group.device.type != "cpu":
        return
    if type(group._all_gather_comm).__name__ == "DefaultAllGather":
        group._all_gather_comm = GatherParameters()
    if type(group._reduce_scatter_comm).__name__ == "DefaultReduceScatter":
        group._reduce_scatter_comm = ReduceGradients()


class _ReshardingCall:
    """A stage as a function between lists of tensors."""

    def __init__(self, call: Callable[..., Any], modules: list[Any]) -> None:
        self._call = call
        self._modules = modules

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        result = self._call(tensors)
        for module in self._modules:
            module.reshard()
        return result


def _functions_of(
    groups: list[Any],
) -> tuple[Callable[[torch.Tensor], bool], Callable[[], Callable[[], None]]]:
    """Returns the two functions by which the runtime knows the parameters of a stage."""
    parameters = [p for group in groups for p in group.fsdp_params]

    def has(leaf: torch.Tensor) -> bool:
        return any(leaf is getattr(p, "_unsharded_param", None) for p in parameters)

    def take_gradients() -> Callable[[], None]:
        held = [(p, p.sharded_param.grad) for p in parameters]
        for p in parameters:
            p.sharded_param.grad = None

        def put_back() -> None:
            for p, gradient in held:
                p.sharded_param.grad = gradient

        return put_back

    return has, take_gradients
