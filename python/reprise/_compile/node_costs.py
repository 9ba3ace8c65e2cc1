"""The costs of the calls of a joint graph, measured on the device or estimated."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .._step.memory import install_cpu_allocator, live_bytes, peak_bytes, reset_peak
from .joint import NodeCost, runs_once, tensors_of

# A machine for estimates: what matters for a plan is the proportion of the two numbers.
_BYTES_PER_SECOND = 1e10
_OPERATIONS_PER_SECOND = 1e11

# A call is measured until it has taken so many nanoseconds in all, but at least this many times.
_ENOUGH_NS = 2_000_000
_LEAST_RUNS = 3


def measured_costs() -> Callable[[fx.Node], NodeCost]:
    """Returns a function that measures calls on their device. Equal calls are measured once.

    A call runs on operands of its own: random numbers, and zeros where it reads integers. Its time
    is the least of several. Random states stay as they are. A call that cannot run alone is
    estimated, and so is a call with effects.
    """
    known: dict[Any, NodeCost] = {}

    def cost(node: fx.Node) -> NodeCost:
        if runs_once(node) and not _may_be_tried(node):
            return estimated_cost(node)
        key = _key(node)
        if key not in known:
            with _outside_of_tracing():
                known[key] = _measure(node)
        return known[key]

    return cost


def estimated_cost(node: fx.Node) -> NodeCost:
    """Returns a cost from bytes and operations.

    The time is that of moving all operands and results at 10 GB/s, or that of the call's
    multiplications and additions at 100 Gflop/s, whichever is longer.
    """
    moved = sum(one.numel() * one.element_size() for one in tensors_of(node))
    for read in node.all_input_nodes:
        moved += sum(one.numel() * one.element_size() for one in tensors_of(read))
    seconds = max(moved / _BYTES_PER_SECOND, _operations(node) / _OPERATIONS_PER_SECOND)
    return NodeCost(max(1, int(seconds * 1e9)))


def _operations(node: fx.Node) -> int:
    from torch.utils.flop_counter import flop_registry

    packet = getattr(node.target, "overloadpacket", None)
    if packet not in flop_registry:
        return 0
    args, kwargs = _fakes(node)
    return int(flop_registry[packet](*args, **kwargs, out_val=node.meta["val"]))


def _fakes(node: fx.Node) -> tuple[Any, Any]:
    return fx.map_arg((node.args, node.kwargs), lambda read: read.meta.get("val"))


def _may_be_tried(node: fx.Node) -> bool:
    """Returns whether a call that may not run twice in a plan may be measured: it only draws."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target.namespace in ("aten", "prims")
        and not target._schema.is_mutable
    )


def _key(node: fx.Node) -> Any:
    def spell(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return (tuple(one.shape), one.stride(), str(one.dtype), str(one.device))
        return repr(one)

    leaves, spec = pytree.tree_flatten(_fakes(node))
    return (str(node.target), tuple(spell(one) for one in leaves), str(spec))


@contextlib.contextmanager
def _outside_of_tracing() -> Iterator[None]:
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._python_dispatch import _disable_current_modes

    with (
        unset_fake_temporarily(),
        _disable_current_modes(),
        torch.no_grad(),
        torch.random.fork_rng(),
    ):
        yield


def _measure(node: fx.Node) -> NodeCost:
    try:
        args, kwargs = pytree.tree_map_only(torch.Tensor, operand, _fakes(node))
        call = node.target
        assert callable(call)
        device = next((one.device for one in tensors_of(node)), torch.device("cpu"))
        workspace = _workspace(lambda: call(*args, **kwargs), device)
        return NodeCost(_least_time(lambda: call(*args, **kwargs), device), workspace)
    except (
        Exception
    ):  # The call does not accept such operands: indices that do not fit, for example.
        return estimated_cost(node)


def operand(like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor of this shape, layout, type and device, of random numbers or zeros."""
    if like.layout != torch.strided or any(one == 0 for one in like.shape):
        return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)
    # Elements of an expanded tensor share memory, so numbers are written to the memory below it.
    last = sum((size - 1) * step for size, step in zip(like.shape, like.stride(), strict=True))
    memory = torch.zeros(last + 1, dtype=like.dtype, device=like.device)
    if like.dtype.is_floating_point or like.dtype.is_complex:
        _ = memory.uniform_(0.1, 1.0) if like.dtype.itemsize > 1 else memory.fill_(1)
    return memory.as_strided(like.shape, like.stride())


def _least_time(call: Callable[[], Any], device: torch.device) -> int:
    least = total = 0
    runs = 0
    while runs < _LEAST_RUNS or total < _ENOUGH_NS:
        _synchronize(device)
        begin = time.perf_counter_ns()
        call()
        _synchronize(device)
        taken = time.perf_counter_ns() - begin
        least = taken if runs == 0 else min(least, taken)
        total += taken
        runs += 1
    return max(1, least)


def _workspace(call: Callable[[], Any], device: torch.device) -> int:
    """Returns the bytes of a call at its highest, less those that its results hold at the end."""
    if device.type == "cpu":
        install_cpu_allocator()
        reset_peak()
        kept = call()
        above = peak_bytes() - live_bytes()
    elif device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        kept = call()
        above = torch.cuda.max_memory_allocated(device) - torch.cuda.memory_allocated(device)
    else:
        return 0
    del kept
    return max(0, above)


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
