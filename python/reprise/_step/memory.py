"""The memory of tensors: how much is live, how much is free, and budgets that depend on that."""

from __future__ import annotations

import sys

import torch

from .. import _core
from .._planning.arguments import Budget, checked_budget
from .._torch import _runtime


def install_cpu_allocator() -> None:
    """Counts all CPU memory that tensors take from now on.

    `remat()` and `capture()` call this function themselves. Call it before the model is made, and
    no memory of tensors is missed.

    Examples:
        >>> reprise.install_cpu_allocator()
    """
    _runtime.install_cpu_allocator()


def live_bytes(device: torch.device | str = "cpu") -> int:
    """Returns the bytes of all live tensors on a device.

    On the CPU these are the bytes that the counting allocator has handed out, and the memory of a
    tensor counts as a multiple of 64 bytes. On CUDA these are the bytes of PyTorch's allocator.

    Args:
        device: The device, or its name.
    """
    return _runtime.live_bytes(str(device))


def peak_bytes(device: torch.device | str = "cpu") -> int:
    """Returns the largest `live_bytes()` since the last `reset_peak()`.

    A step of Reprise resets the peak when it begins.

    Args:
        device: The device, or its name.
    """
    return _runtime.peak_bytes(str(device))


def reset_peak(device: torch.device | str = "cpu") -> None:
    """Sets `peak_bytes()` to the current `live_bytes()`.

    Args:
        device: The device, or its name.

    Examples:
        >>> reprise.reset_peak()
        >>> output = plain(x)
        >>> peak = reprise.peak_bytes()
    """
    _runtime.reset_peak(str(device))


def free_bytes(device: torch.device) -> int:
    """Returns the bytes that a step may hold: the live bytes of tensors, and what is free."""
    if device.type == "cpu":
        return live_bytes() + _free_host_bytes()
    free, _ = torch.accelerator.get_memory_info(device)
    return int(free + torch.accelerator.memory_reserved(device))


def _free_host_bytes() -> int:
    """Returns the free bytes of the system, or of the control group if it has fewer. Linux only."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            free = min(free, limit - int(file.read()))
    except (OSError, ValueError):  # There is no control group, or it has no limit.
        pass
    return max(0, free)


def budget_for(budget: Budget, device: torch.device) -> Budget:
    """Returns the budget for a device. The budget "auto" becomes the bytes that the device has.

    The chosen number is printed to standard error.

    Raises:
        InputError: The value is of no type that a budget can have.
    """
    if checked_budget(budget) != "auto":
        return budget
    found = free_bytes(device)
    text = _core.format_bytes(found)
    print(f"reprise: budget auto is {text} ({found} B), free on {device}", file=sys.stderr)
    return found
