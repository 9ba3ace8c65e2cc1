"""The memory of a device as its own allocator counts it, in the same words for every device.

On the CPU the counting allocator of Reprise stands for the device's. Elsewhere the figures come
from PyTorch's allocator of the device, which knows nothing of Reprise.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import reprise
import torch


class DeviceMemory:
    """Counts and limits the memory of one device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.counted_here = device.type == "cpu"
        if self.counted_here:
            reprise.install_cpu_allocator()

    def synchronize(self) -> None:
        if not self.counted_here:
            torch.accelerator.synchronize(self.device)

    def live(self) -> int:
        if self.counted_here:
            return reprise.live_bytes()
        return int(torch.accelerator.memory_allocated(self.device))

    def peak(self) -> int:
        if self.counted_here:
            return reprise.peak_bytes()
        return int(torch.accelerator.max_memory_allocated(self.device))

    def reserved(self) -> int | None:
        """Returns the bytes that the allocator holds, or None where it keeps no freed memory."""
        if self.counted_here:
            return None
        return int(torch.accelerator.memory_reserved(self.device))

    def reserved_peak(self) -> int | None:
        if self.counted_here:
            return None
        return int(torch.accelerator.max_memory_reserved(self.device))

    def reset(self) -> None:
        """Gives freed memory back to the device and starts new peaks."""
        gc.collect()
        self.synchronize()
        if self.counted_here:
            reprise.reset_peak()
        else:
            torch.accelerator.empty_cache()
            torch.accelerator.reset_peak_memory_stats(self.device)

    def total(self) -> int | None:
        """Returns the bytes of the device, or None for the CPU."""
        if self.counted_here:
            return None
        return int(torch.accelerator.get_memory_info(self.device)[1])

    @property
    def can_limit(self) -> bool:
        """Whether the device's allocator can be told to refuse more than some bytes."""
        return self.device.type == "cuda"

    @contextlib.contextmanager
    def limited(self, size: int | None) -> Iterator[None]:
        """Lets the allocator hold so many bytes at most. Only CUDA's allocator can do that."""
        if size is None or not self.can_limit:
            yield
            return
        total = torch.cuda.get_device_properties(self.device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, size / total), self.device)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)


def use_device(name: str, sim_library: str = "") -> torch.device:
    """Returns the device with this name, and loads what it needs.

    Args:
        name: "cpu", "cuda", "cuda:1", "sim:0" and the like.
        sim_library: The file libsim_python.so of the simulated accelerator, for the devices "sim".
    """
    if name.startswith("sim"):
        reprise.install_cpu_allocator()  # The simulated devices stand in front of it.
        import sim

        sim.load(sim_library, devices=2, capacity=8 << 30)
    device = torch.device(name)
    if device.type != "cpu" and device.index is None:
        device = torch.device(device.type, 0)
    if device.type not in ("cpu", "sim"):
        found = torch.accelerator.current_accelerator()
        if found is None or found.type != device.type or not torch.accelerator.is_available():
            raise SystemExit(
                f"there is no device {name!r} here: PyTorch {torch.__version__} sees "
                f"{'no accelerator' if found is None else f'{found.type} without a device'}. "
                f"Use --device cpu, or a PyTorch and a driver that see the device"
            )
        torch.accelerator.set_device_index(device.index or 0)
    return device


def machine(device: torch.device) -> dict[str, Any]:
    """Returns what a table should say of the machine that it was measured on."""
    about: dict[str, Any] = {
        "device": str(device),
        "pytorch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "reprise": reprise.__version__,
        "threads": torch.get_num_threads(),
        "name": processor(),
    }
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        about |= {"name": found.name, "bytes": found.total_memory}
        about["multiprocessors"] = found.multi_processor_count
    return about


def processor() -> str:
    """Returns the name of the processor, or "unknown"."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line for line in lines if line.startswith("model name"))
            return next(names, ": unknown").split(":", 1)[1].strip()
    except OSError:
        return "unknown"
