"""The process group of a captured step: its name, and failures that all ranks hear of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Protocol

import torch

from .._torch import _runtime
from ..errors import InputError


def name_of_group(process_group: Any, argument: str = "process_group=") -> str:
    """Returns the name by which the extension finds a group, or "" without one.

    `argument` is what the caller's argument is called in messages.

    Raises:
        InputError: There is no such group, or this process does not belong to it.
    """
    if process_group is None:
        return ""
    distributed: Any = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        raise InputError(f"{argument} needs torch.distributed.init_process_group()")
    name = getattr(process_group, "group_name", None)
    if not isinstance(name, str) or process_group is distributed.GroupMember.NON_GROUP_MEMBER:
        raise InputError(
            f"{argument} is a group of torch.distributed that this process belongs to, such as "
            f"torch.distributed.group.WORLD, not {type(process_group).__name__}"
        )
    return name


def size_of_group(process_group: Any) -> int:
    """Returns the number of ranks of a group, or 1 without one."""
    if not name_of_group(process_group):
        return 1
    distributed: Any = torch.distributed
    return int(distributed.get_world_size(process_group))


def cap_in_bytes(bucket_cap_mb: float | None, group: str) -> int:
    """Returns the bytes of a bucket, or 0 for the usual ones."""
    if bucket_cap_mb is None:
        return 0
    if not group:
        raise InputError("bucket_cap_mb= is for a step with process_group=")
    if not bucket_cap_mb > 0:
        raise InputError(f"bucket_cap_mb= is a number of MiB above 0, not {bucket_cap_mb!r}")
    return max(1, int(bucket_cap_mb * 1024 * 1024))


class _TellsFailure(Protocol):
    def tell_failure(self, reason: str) -> None: ...


@contextlib.contextmanager
def telling(native: _TellsFailure) -> Iterator[None]:
    """Lets the other ranks of a step's process group hear of an exception."""
    try:
        yield
    except BaseException as error:
        native.tell_failure(f"{type(error).__name__}: {error}")
        raise


@contextlib.contextmanager
def telling_group(group: str) -> Iterator[None]:
    """Does so before there is a step, for the group with this name."""
    try:
        yield
    except BaseException as error:
        _runtime.tell_failure(group, f"{type(error).__name__}: {error}")
        raise
