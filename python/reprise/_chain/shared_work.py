"""Stages whose work the ranks of a process group share out, layer by layer."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from .._step.modules import modules_of
from .._step.process_group import name_of_group
from .._step.stages import NamedStages
from ..errors import InputError
from .shared_layers import begins_pair, can_share_attention, run_attention, run_pair

# Runs a module on some ranks of the group: the module, the group, and the arguments of the call.
Runner = Callable[..., Any]


def _distributed() -> Any:
    return torch.distributed


def _run_shared(module: nn.Sequential, group: Any, x: Any) -> Any:
    """Runs a sequence of layers in which the ranks share out the work of each pair."""
    layers = list(module)
    ranks = _distributed().get_world_size(group)
    at = 0
    while at < len(layers):
        if begins_pair(layers, at, ranks):
            first, activation, second = layers[at : at + 3]
            x = run_pair(first, activation, second, x, group)
            at += 3
        else:
            x = layers[at](x)
            at += 1
    return x


def _runner_of(module: nn.Module, ranks: int) -> Runner | None:
    """Returns the function in which ranks share out the work of a module itself."""
    if can_share_attention(module, ranks):
        return run_attention
    if type(module) is not nn.Sequential or "forward" in module.__dict__:
        return None
    layers = list(module)
    pairs = any(begins_pair(layers, at, ranks) for at in range(len(layers)))
    return _run_shared if pairs else None


def _runners_of(stage: Callable[..., Any], ranks: int) -> dict[nn.Module, Runner]:
    parts = (part for module in modules_of(stage) for part in module.modules())
    found = ((part, _runner_of(part, ranks)) for part in parts)
    return {part: runner for part, runner in found if runner is not None}


@contextlib.contextmanager
def _sharing(runners: dict[nn.Module, Runner], group: Any) -> Iterator[None]:
    """Lets the ranks share out the work of these modules within the scope."""
    for module, runner in runners.items():
        module.__dict__["forward"] = functools.partial(runner, module, group)
    try:
        yield
    finally:
        for module in runners:
            del module.__dict__["forward"]


class _SharedCall:
    """A stage whose ranks share out its work, as a function between lists of tensors."""

    def __init__(
        self, call: Callable[..., Any], runners: dict[nn.Module, Runner], group: Any
    ) -> None:
        self._call = call
        self._runners = runners
        self._group = group

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        with _sharing(self._runners, self._group):
            return self._call(tensors)


def shared_argument(
    stages: NamedStages,
    calls: list[Callable[..., Any]],
    group: Any,
    sample: list[torch.Tensor],
) -> tuple[str, list[Callable[..., Any] | None]]:
    """Returns the name of the group, and for each stage the function that shares out its work.

    Gives parameters and buffers the bits of the group's first rank.

    Args:
        stages: The stages.
        calls: The functions by which the runtime calls the stages.
        group: The process group.
        sample: The inputs on which the stages are measured.

    Raises:
        InputError: There is no such group, no stage has work that the ranks could share, or the
            ranks were given different inputs.
    """
    name = name_of_group(group)
    ranks = _distributed().get_world_size(group)
    shared: list[Callable[..., Any] | None] = []
    for (_, stage), call in zip(stages, calls, strict=True):
        runners = _runners_of(stage, ranks)
        shared.append(_SharedCall(call, runners, group) if runners else None)
    if not any(shared):
        raise InputError(
            "no stage has work that the ranks of process_group= could share out: an "
            "nn.MultiheadAttention, or an nn.Sequential inside of a stage with two linear layers "
            "or two convolutions and an activation between them, without hooks, and with heads "
            f"or a width that {ranks} ranks divide"
        )
    _require_same(sample, group)
    first = _distributed().get_global_rank(group, 0)
    modules = dict.fromkeys(m for _, stage in stages for m in modules_of(stage))
    with torch.no_grad():
        for tensor in dict.fromkeys(
            t for m in modules for own in (m.parameters(), m.buffers()) for t in own
        ):
            _distributed().broadcast(tensor.detach(), first, group=group)
    return name, shared


def _require_same(sample: list[torch.Tensor], group: Any) -> None:
    digest = hashlib.sha256()
    for tensor in sample:
        digest.update(str(tensor.shape).encode())
        digest.update(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )
    all_digests: list[Any] = [None] * _distributed().get_world_size(group)
    _distributed().all_gather_object(all_digests, digest.hexdigest(), group=group)
    if len(set(all_digests)) > 1:
        raise InputError(
            "the ranks of process_group= share out the work on the same inputs, and they were "
            "given different ones"
        )
