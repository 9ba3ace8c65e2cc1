"""The time of a call on a machine of which two figures are known: the roofline model.

Source: Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for
multicore architectures", CACM 52(4), 2009. A call takes the time of its multiplications and
additions, or the time of moving its operands and results, whichever is longer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

# These calls read a few rows of their first operand, and not the whole of it.
_READ_ROWS = {"embedding", "index_select", "gather", "index"}
# These calls only take memory.
_MOVE_NOTHING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


@dataclass(frozen=True)
class Machine:
    """The figures of a device.

    Attributes:
        operations_per_second: The multiplications and additions per second that large products of
            matrices reach in the number format of the step.
        bytes_per_second: The bytes of device memory that a large element-wise call moves a second.
        overhead_ns: The time that each call takes beside that, for its launch.
    """

    operations_per_second: float
    bytes_per_second: float
    overhead_ns: int = 0


def time_ns(machine: Machine, call: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Returns the time of one call in nanoseconds, at least 1.

    Args:
        machine: The figures of the device.
        call: The operator, for example `torch.ops.aten.mm.default`.
        args: Its arguments. The tensors among them may be fake.
        kwargs: Its keyword arguments.
        result: The (fake) tensors that it returns.
    """
    moved = bytes_moved(call, (args, kwargs), result) / machine.bytes_per_second
    computed = operations(call, args, kwargs, result) / machine.operations_per_second
    return max(1, machine.overhead_ns + int(max(moved, computed) * 1e9))


def bytes_moved(call: Any, operands: Any, result: Any) -> int:
    """Returns the bytes of all operands that a call reads and of all results that it writes."""
    name = _name(call)
    if name in _MOVE_NOTHING:
        return 0
    results = [_bytes(one) for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    if name in _READ_ROWS:
        return 2 * sum(results)
    read = [_bytes(one) for one in tree_leaves(operands) if isinstance(one, torch.Tensor)]
    # A call that writes its operand returns it. Bytes that are read and written move twice.
    written = [] if results else _written_bytes(call, operands)
    return sum(read) + sum(results) + sum(written)


def operations(call: Any, args: Any, kwargs: Any, result: Any) -> int:
    """Returns the multiplications and additions of a product of matrices, a convolution or an
    attention; 0 for every other call, which memory limits."""
    from torch.utils import flop_counter

    flop_registry: Any = flop_counter.flop_registry
    attention: Any = flop_counter.sdpa_flop_count
    attention_backward: Any = flop_counter.sdpa_backward_flop_count
    name = _name(call)
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return int(attention(args[0].shape, args[1].shape, args[2].shape))
    if name == "_scaled_dot_product_flash_attention_for_cpu_backward":
        return int(attention_backward(*(one.shape for one in args[:4])))
    packet = getattr(call, "overloadpacket", None)
    if packet not in flop_registry:
        return 0
    return int(flop_registry[packet](*args, **kwargs, out_val=result))


def _name(call: Any) -> str:
    schema = getattr(call, "_schema", None)
    return "" if schema is None else str(schema.name).rpartition("::")[2]


def _bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements. An expanded tensor has fewer than it shows."""
    shown = tensor.numel() * tensor.element_size()
    return min(shown, tensor.untyped_storage().nbytes())


def _written_bytes(call: Any, operands: Any) -> list[int]:
    args, kwargs = operands
    written = []
    for argument, value in zip(call._schema.arguments, args, strict=False):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written += [_bytes(one) for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
    for argument in call._schema.arguments:
        if argument.name in kwargs and argument.alias_info and argument.alias_info.is_write:
            found = tree_leaves(kwargs[argument.name])
            written += [_bytes(one) for one in found if isinstance(one, torch.Tensor)]
    return written
