"""Measuring a model into a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .._planning.arguments import Observer, observe
from .._planning.measured import Profile
from .._step.stages import (
    Stages,
    as_arguments,
    check_model,
    loss_argument,
    named_stages,
    stage_arguments,
)
from .._step.tree import Tree, flatten
from .._torch import _runtime


def profile(
    model: Stages,
    sample: Any,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    alternatives: Sequence[str] | None = None,
    output_held: bool = True,
    name: str = "model",
    observer: Observer | None = None,
) -> Profile:
    """Measures a model into a chain, without planning for a budget.

    Sizes are exact for the shapes of the sample and for the number of threads. Times are medians.
    Parameters, buffers, gradients and the random state are left as they were.

    Args:
        model: As for `remat()`.
        sample: As for `remat()`.
        loss: As for `remat()`.
        alternatives: As for `remat()`.
        output_held: As for `remat()`.
        name: The name of the chain.
        observer: A function that is called with `Progress`.

    Returns:
        The measured chain, and how it was measured.

    Raises:
        InputError: A stage fails or cannot be used. The message names the stage.

    Examples:
        >>> measured = reprise.profile(plain, x)
        >>> measured.save("profile.json")
    """
    check_model(model)
    tensors, tree = flatten((as_arguments(sample), {}), "the sample")
    stages = named_stages(model)
    trees: list[Tree | None] = [tree] + [None] * len(stages)
    return Profile.from_json(
        _runtime.profile(
            stage_arguments(stages, trees),
            tensors,
            loss=loss_argument(loss, trees),
            alternatives=alternatives,
            name=name,
            output_held=output_held,
            observer=observe(observer),
        )
    )
