"""Collective operations whose memory is free again as soon as they are over.

Threads of Gloo hold the tensors of an operation for a moment longer, and some operations make
copies of their own, so that a step would need more bytes in one run than in another. Here Gloo gets
tensors that do not own their memory, and no operation that makes copies.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

# Memory that Gloo may still write, because an operation has failed. It is never given back.
_abandoned: list[torch.Tensor] = []


def _distributed() -> Any:
    return torch.distributed


def _alias_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the same memory that does not own it, for tensors on the CPU."""
    if not tensor.is_cpu or tensor.numel() == 0:
        return tensor
    memory = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(
        tensor.data_ptr()
    )
    return torch.frombuffer(memory, dtype=tensor.dtype).view(tensor.shape)


def all_reduce(tensor: torch.Tensor, group: Any, op: Any = None) -> None:
    """Sums a contiguous tensor over the ranks, in place."""
    distributed = _distributed()
    try:
        operation = distributed.ReduceOp.SUM if op is None else op
        distributed.all_reduce(_alias_of(tensor), op=operation, group=group)
    except BaseException:
        _abandoned.append(tensor)
        raise


def all_gather(parts: torch.Tensor, own: torch.Tensor, group: Any) -> None:
    """Fills a tensor of one dimension with the parts of all ranks, by rank."""
    distributed = _distributed()
    old_name = "all_gather_into_tensor"  # before PyTorch 2.13
    gather = getattr(distributed, "all_gather_single", None) or getattr(distributed, old_name)
    try:
        gather(_alias_of(parts), _alias_of(own), group=group)
    except BaseException:
        _abandoned.extend((parts, own))
        raise


class GatherParameters:
    """How FSDP2 gathers the parameters of a module on the CPU."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Returns memory for an operation."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Any, input_tensor: Any, group: Any, async_op: bool = False
    ) -> None:
        """Gathers, and waits."""
        all_gather(output_tensor, input_tensor, group)


class ReduceGradients(GatherParameters):
    """How FSDP2 sums gradients and takes the part of this rank, on the CPU.

    The bits are those of Gloo's own operation, which sums a copy of the whole input on each rank.
    This one sums the input itself, which nobody reads afterwards.
    """

    def __call__(  # type: ignore[override]
        self, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Sums, and waits."""
        all_reduce(input_tensor, group, op)
        length = output_tensor.numel()
        first = length * _distributed().get_rank(group)
        output_tensor.copy_(input_tensor.view(-1)[first : first + length].view_as(output_tensor))
