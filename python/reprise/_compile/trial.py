"""One run of a compiled function on operands of its own, to measure its peak."""

from __future__ import annotations

import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from .._step.memory import install_cpu_allocator, live_bytes, peak_bytes, reset_peak
from ..errors import InputError
from .node_costs import operand

# The first run may take memory that later ones do not, and a step has to fit the budget, too.
_RUNS = 2


def measured_peak(compiled: Callable[..., Any], inputs: list[Any]) -> int:
    """Runs a compiled function forward and backward on operands of its own.

    The operands have the shapes, strides and types of the inputs: random numbers, and zeros where
    the inputs are integers. Random states stay as they are.

    Args:
        compiled: The function. Its compilation is over.
        inputs: The inputs that it was compiled for, as `torch.compile` gives them to a backend.

    Returns:
        The highest bytes of the two passes: operands, outputs, gradients, and all between.

    Raises:
        InputError: The device does not count its memory, or the function fails on such operands.
    """
    device = next((one.device for one in inputs if isinstance(one, torch.Tensor)), None)
    if device is None or device.type not in ("cpu", "cuda"):
        raise InputError(
            f'the option "margin" cannot be "measured" on {device}: give a number of bytes'
        )
    # The modes of PyTorch's tracers are those of a thread, and this thread is still tracing.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_measure, compiled, inputs, device).result()


def _measure(compiled: Callable[..., Any], inputs: list[Any], device: torch.device) -> int:
    with torch.random.fork_rng(), torch.enable_grad():
        before = _restart(device)
        given = [_given(one) for one in inputs]
        try:
            for _ in range(_RUNS):
                _run(compiled, given)
        except Exception as error:
            raise InputError(
                "the peak cannot be measured, because the compiled graph fails on random numbers: "
                f'{error}; give the option "margin" as a number of bytes'
            ) from error
        return _highest(device) - before


def _run(compiled: Callable[..., Any], given: list[Any]) -> None:
    for one in given:
        if isinstance(one, torch.Tensor):
            one.grad = None
    outputs = compiled(*given)
    ends = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
    if ends:
        torch.autograd.backward(ends, [torch.ones_like(one) for one in ends])


def _given(one: Any) -> Any:
    if not isinstance(one, torch.Tensor):
        return one
    return operand(one).requires_grad_(one.requires_grad)


def _restart(device: torch.device) -> int:
    """Begins to look for the highest bytes. Returns the bytes that are live now."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        return torch.cuda.memory_allocated(device)
    install_cpu_allocator()
    reset_peak()
    return live_bytes()


def _highest(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device)
    return peak_bytes()
