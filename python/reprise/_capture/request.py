"""The request of a capture: the function, and how it is recorded."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from .._planning.arguments import Budget, Observer, observe
from .._planning.document import Path
from .._step.foreseen import ForeseenState
from .._step.memory import budget_for
from .._step.process_group import cap_in_bytes, name_of_group, size_of_group
from .._step.shards import shard_of
from ..errors import InputError
from .lockstep import check_lockstep
from .optimizer import ParameterSteps


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `capture()` but for the sample, whose memory nobody may hold, checked.

    Raises:
        InputError: An argument has a value that no capture knows.
    """

    step: Callable[..., Any]
    modules: list[torch.nn.Module]
    on_miss: str
    outcomes: int
    alternatives: Sequence[str] | None
    optimizer: torch.optim.Optimizer | None
    budget: Budget
    unguarded: tuple[str, ...]
    lockstep: str
    name: str
    observer: Observer | None
    cache: Path | None
    process_group: Any
    bucket_cap_mb: float | None
    shard_optimizer: bool
    other_devices: tuple[torch.device | str, ...]
    share_work: Any

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """Returns the request that a function was given under the names of these fields."""
        taken = {field.name: given[field.name] for field in dataclasses.fields(cls)}
        for several in ("unguarded", "other_devices"):
            taken[several] = tuple(taken[several])
        return cls(**taken)

    def __post_init__(self) -> None:
        check_lockstep(self.lockstep)
        if self.on_miss not in ("refuse", "recapture"):
            raise InputError(f'on_miss is "refuse" or "recapture", not {self.on_miss!r}')
        outcomes = self.outcomes
        if isinstance(outcomes, bool) or not isinstance(outcomes, int) or outcomes < 1:
            raise InputError(f"outcomes is a number of captures from 1 on, not {outcomes!r}")

    @property
    def recapture(self) -> bool:
        """Says whether a miss captures the step again."""
        return self.on_miss == "recapture"

    @functools.cached_property
    def _updates(self) -> ParameterSteps | None:
        if self.optimizer is None:
            return None
        shard = shard_of(self.optimizer)
        if shard is not None and shard.ranks > 1 and not self.shard_optimizer:
            raise InputError(
                "the optimizer's state is sharded over several ranks, because a step was captured "
                "with shard_optimizer before: capture this one so, too, or make a new optimizer"
            )
        return ParameterSteps(self.optimizer, size_of_group(self.process_group))

    def options(self, device: torch.device, foreseen: ForeseenState) -> dict[str, Any]:
        """Returns the options of the runtime for a step on a device."""
        group = name_of_group(self.process_group)
        shared = name_of_group(self.share_work, "share_work=")
        return {
            "recapture": self.recapture,
            "outcomes": self.outcomes,
            "alternatives": self.alternatives,
            "optimizer": self._updates,
            "lockstep": self.lockstep,
            "budget": budget_for(self.budget, device),
            "name": self.name,
            "observer": observe(self.observer),
            "cache": "" if self.cache is None else os.fspath(self.cache),
            "group": group,
            "bucket_cap": cap_in_bytes(self.bucket_cap_mb, group),
            "shard_optimizer": self.shard_optimizer,
            "foreseen": foreseen,
            "other_devices": [str(torch.device(each)) for each in self.other_devices],
            **({"share_work": shared} if shared else {}),
        }
