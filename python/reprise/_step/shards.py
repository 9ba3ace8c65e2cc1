"""Optimizers whose state is sharded: which parameters' state this process keeps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch

from ..errors import InputError


class Shard(NamedTuple):
    """The part of an optimizer's state that this process keeps.

    Attributes:
        kept: The identities of the parameters whose state is here.
        ranks: The number of processes that have a shard.
    """

    kept: frozenset[int]
    ranks: int


_shards: weakref.WeakKeyDictionary[torch.optim.Optimizer, Shard] = weakref.WeakKeyDictionary()


def keep_shard(optimizer: torch.optim.Optimizer, kept: Iterable[torch.Tensor], ranks: int) -> None:
    """Drops the state of all other parameters, and remembers that other processes keep it.

    Raises:
        InputError: The optimizer is sharded in another way.
    """
    shard = Shard(frozenset(id(parameter) for parameter in kept), ranks)
    before = _shards.get(optimizer)
    if before is not None and before != shard:
        raise InputError(
            "a step that was captured before has sharded the optimizer in another way, and the "
            "state of some parameters would be on no rank: make a new optimizer for this step"
        )
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in shard.kept:
                optimizer.state.pop(parameter, None)
    _shards[optimizer] = shard


def shard_of(optimizer: torch.optim.Optimizer) -> Shard | None:
    """Returns the shard of an optimizer, or None if its whole state is here."""
    return _shards.get(optimizer)
