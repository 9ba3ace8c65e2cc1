"""Models as sequences of stages, in the form in which the runtime takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from ..errors import InputError
from .interrupt import note_interrupt
from .modules import modules_of
from .tree import Tree, flatten, rebuild

# A model for chain mode is an nn.Sequential, an nn.ModuleList, or a list of modules and functions.
Stages = nn.Sequential | nn.ModuleList | Sequence[Callable[..., Any]]
NamedStages = list[tuple[str, Callable[..., Any]]]


def named_stages(model: Any, prefix: str = "") -> NamedStages:
    """Returns the stages of a model with their names. An inner nn.Sequential is taken apart.

    Args:
        model: An nn.Sequential, an nn.ModuleList, or a list or tuple of stages.
        prefix: The text that all names begin with.

    Raises:
        InputError: A stage is no module and no function.
    """
    items = model._modules.items() if isinstance(model, nn.Module) else enumerate(model)
    stages: NamedStages = []
    for name, stage in items:
        if not callable(stage):
            raise InputError(
                f"stage {prefix}{name} is no module or function but a {type(stage).__name__}"
            )
        if _is_plain_sequential(stage):
            stages += named_stages(stage, f"{prefix}{name}.")
        else:
            stages.append((f"{prefix}{name}", stage))
    return stages


def _is_plain_sequential(stage: Any) -> bool:
    """Returns whether a stage is an nn.Sequential that only calls its children."""
    return (
        isinstance(stage, nn.Sequential)
        and type(stage).forward is nn.Sequential.forward
        and not (stage._forward_hooks or stage._forward_pre_hooks)
        and not (stage._backward_hooks or stage._backward_pre_hooks)
    )


def check_model(model: Any) -> None:
    """Raises InputError if a model does not say what its stages are."""
    listed = _is_plain_sequential(model) or isinstance(model, nn.ModuleList)
    if isinstance(model, nn.Module) and not listed:
        raise InputError(
            f"a {type(model).__name__} does not say what its stages are: give an nn.Sequential "
            "without hooks, or the list of its stages with `module=`, or use reprise.capture()"
        )
    if not isinstance(model, (nn.Module, list, tuple)):
        raise InputError(f"a model is an nn.Sequential or a list of stages, not {type(model)!r}")
    if not named_stages(model):
        raise InputError("the model has no stage")


def as_arguments(sample: Any) -> tuple[Any, ...]:
    """Returns the arguments of a model from one input, or from a tuple or list of inputs."""
    return tuple(sample) if isinstance(sample, (tuple, list)) else (sample,)


class _StageCall:
    """A stage as a function from a list of tensors to a list of tensors.

    `trees` has the structure of each boundary. The stage reads the structure of its input, and it
    writes the structure of its output.
    """

    def __init__(
        self, name: str, stage: Callable[..., Any], position: int, trees: list[Tree | None]
    ) -> None:
        self.name = name
        self.stage = stage
        self.position = position
        self.trees = trees

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        tree = self.trees[self.position]
        assert tree is not None
        value = rebuild(tree, tensors)
        try:
            # The first stage is called with the model's arguments. Each other stage is called with
            # one value, as nn.Sequential calls its children.
            output = self.stage(*value[0], **value[1]) if self.position == 0 else self.stage(value)
        except Exception as error:
            if hasattr(error, "add_note"):  # Exceptions have notes from Python 3.11 on.
                error.add_note(f"in stage '{self.name}' of a planned model")
            raise
        except BaseException as error:
            note_interrupt(error)
            raise
        what = f"what stage '{self.name}' returns"
        result, tree = flatten(output, what)
        if tree.constants():
            raise InputError(f"{what} holds {tree.constants()[0]!r}; stages hand over tensors only")
        self.trees[self.position + 1] = tree
        return result


class _LossCall:
    """The user's loss as a function of the list of output tensors."""

    def __init__(self, loss: Callable[[Any], torch.Tensor], trees: list[Tree | None]) -> None:
        self.loss = loss
        self.trees = trees

    def __call__(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        tree = self.trees[-1]
        assert tree is not None
        try:
            loss: Any = self.loss(rebuild(tree, tensors))
        except BaseException as error:
            note_interrupt(error)
            raise
        if not isinstance(loss, torch.Tensor):
            raise InputError(f"loss= must return a tensor, not {loss!r}")
        return loss


def stage_arguments(
    stages: NamedStages, trees: list[Tree | None]
) -> list[tuple[str, Callable[..., Any], list[nn.Module]]]:
    """Returns the stages as the runtime takes them: the name, a function, and the modules.

    Args:
        stages: The stages.
        trees: The structure of each boundary: that of the model's arguments first, and None for
            the others. The functions fill them in.
    """
    return [
        (name, _StageCall(name, stage, i, trees), modules_of(stage))
        for i, (name, stage) in enumerate(stages)
    ]


def loss_argument(loss: Any, trees: list[Tree | None]) -> Any:
    """Returns the user's loss as the runtime takes it, or None for the runtime's own loss."""
    return None if loss is None else _LossCall(loss, trees)
