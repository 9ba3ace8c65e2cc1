"""Optimizers whose state is sharded: which parameters' state this process keeps."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import NamedTuple

import torch


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
    """Drops the state of all other parameters, and remembers that other processes keep it."""
    identities = frozenset(id(parameter) for parameter in kept)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in identities:
                optimizer.state.pop(parameter, None)
    _shards[optimizer] = Shard(identities, ranks)


def shard_of(optimizer: torch.optim.Optimizer) -> Shard | None:
    """Returns the shard of an optimizer, or None if its whole state is here."""
    return _shards.get(optimizer)
