"""The simulated accelerator in Python.

    import sim
    sim.load("build/release/tests/support/accelerator/libsim_python.so")
    x = torch.ones(4, device="sim:0")

A process loads it once, after other code that replaces the CPU's allocator (such as ``import reprise``) and
before its first ``backward()``.
"""

import atexit
import time
import types

import torch


def load(library, devices=2, capacity=1 << 30, granule=512):
    """Registers the devices ``sim:0``, ``sim:1`` and so on, and the module ``torch.sim``."""
    torch.ops.load_library(str(library))
    torch.ops.sim.install(devices, capacity, granule)
    if hasattr(torch, "sim"):
        return
    module = types.ModuleType("torch.sim")  # torch.random and torch.accelerator ask it
    module.is_available = module.is_initialized = lambda: True
    module.device_count = lambda: devices
    module.current_device = torch.accelerator.current_device_index
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: [torch.ops.sim.manual_seed(d, seed) for d in range(devices)]
    module.get_rng_state = lambda device="sim": torch.ops.sim.get_rng_state(_index(device))
    module.set_rng_state = lambda state, device="sim": torch.ops.sim.set_rng_state(_index(device), state)
    torch._register_device_module("sim", module)
    # A thread of autograd drops what is left of a backward pass some microseconds after backward() returns. If
    # Python ends in between, PyTorch ends the process with "terminate called without an active exception".
    atexit.register(time.sleep, 0.05)


def _index(device):
    index = device if isinstance(device, int) else torch.device(device).index
    return torch.accelerator.current_device_index() if index is None else index


def take_reports():
    """The sentences of the check for missing synchronisation since the last call."""
    return torch.ops.sim.take_reports()


def set_capacity(device, size):
    """Bytes of a device from now on; at most what ``load()`` gave it."""
    torch.ops.sim.set_capacity(device, size)


def fail_allocation(device, number):
    """The allocation with this number (1: the next one) fails once on the device."""
    torch.ops.sim.fail_allocation(device, number)


def host_time_ns():
    """The simulated clock of the host."""
    return torch.ops.sim.host_time_ns()
