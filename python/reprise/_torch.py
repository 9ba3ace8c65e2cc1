"""The part that needs PyTorch: finds out whether it can be used, and loads it."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import _core, errors
from ._built_for import TORCH_VERSION
from ._html import fields_html
from ._planning import Budget, checked
from .errors import InputError

REBUILD = (
    "with the PyTorch that you want installed, run `pip install --no-build-isolation .` in "
    "reprise's source folder"
)


def check(built: str, installed: str | None) -> None:
    """InputError unless the runtime, built for one version of PyTorch, can be loaded beside
    another."""
    if installed is None:
        raise InputError(
            "training needs PyTorch (torch), which is not installed here; planning and "
            "checking do not"
        )
    if not built:
        raise InputError(f"reprise was built without its PyTorch runtime; {REBUILD}")
    if installed.partition("+")[0] != built:
        raise InputError(
            f"reprise was built for PyTorch {built}, and {installed} is installed; {REBUILD}, or "
            f"install torch=={built}"
        )


try:
    import torch
except ImportError:
    check(TORCH_VERSION, None)
check(TORCH_VERSION, str(torch.__version__))

from . import _runtime as _runtime  # noqa: E402 - only once it is known to fit

errors._last_refusal = _runtime.last_refusal


@dataclass(frozen=True)
class StepReport:
    """What the last step took. On the CPU the two peaks are equal to the byte."""

    budget_bytes: int | None  # None: no limit
    predicted_peak_bytes: int
    measured_peak_bytes: int
    steps: int  # so far
    plans: int  # made so far
    # Of a captured step's memory in one block; 0 while there is none.
    arena_height_bytes: int = 0
    arena_live_bytes: int = 0  # the least that any placement needs
    served: int = 0  # allocations at their planned places
    fallbacks: int = 0  # allocations that the heap served instead

    def __str__(self) -> str:
        if self.steps == 0:
            return "not run yet"
        budget = "none" if self.budget_bytes is None else _core.format_bytes(self.budget_bytes)
        return (
            f"step {self.steps}: measured peak {_core.format_bytes(self.measured_peak_bytes)}, "
            f"predicted {_core.format_bytes(self.predicted_peak_bytes)}, budget {budget}, "
            f"{self.plans} plan{'' if self.plans == 1 else 's'} so far"
        )

    def _repr_html_(self) -> str:
        return fields_html(self)


def install_cpu_allocator() -> None:
    """Counts all CPU memory of tensors from now on. remat() and capture() do it themselves; called
    before a model is made, nothing is missed."""
    _runtime.install_cpu_allocator()


def live_bytes() -> int:
    """CPU bytes of tensors that are live, as far as the counting allocator handed them out."""
    return _runtime.live_bytes()


def peak_bytes() -> int:
    """The largest live_bytes() since the last reset_peak(). A step of Reprise begins with one."""
    return _runtime.peak_bytes()


def reset_peak() -> None:
    _runtime.reset_peak()


def free_bytes(device: torch.device) -> int:
    """What a step may have on this device: its tensors' bytes of now, and what is free."""
    if device.type == "cpu":
        return live_bytes() + _free_host_bytes()
    free, _ = torch.accelerator.get_memory_info(device)
    return int(free + torch.accelerator.memory_reserved(device))


def _free_host_bytes() -> int:
    """What the system has, or the control group if it has less. Linux."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        fields = dict(line.split(":", 1) for line in lines)
    free = int(fields["MemAvailable"].split()[0]) * 1024
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory.current", encoding="ascii") as file:
            free = min(free, limit - int(file.read()))
    except (OSError, ValueError):  # no control group, or one without a limit
        pass
    return max(0, free)


def budget_for(budget: Budget, device: torch.device) -> Budget:
    """ "auto" as the bytes that the device has; anything else as it is."""
    if checked(budget) != "auto":
        return budget
    found = free_bytes(device)
    text = _core.format_bytes(found)
    print(f"reprise: budget auto is {text} ({found} B), free on {device}", file=sys.stderr)
    return found


def modules_of(function: Any) -> list[torch.nn.Module]:
    """The modules that a function uses, as far as it shows: itself, what it closes over, its
    defaults, globals that it names, the object it is a method of; of such objects their attributes,
    too."""
    found: list[torch.nn.Module] = []
    _collect(function, torch.nn.Module, found, {})
    return found


def optimizers_of(function: Any) -> list[torch.optim.Optimizer]:
    """The optimizers that a function uses, found in the same places."""
    found: list[torch.optim.Optimizer] = []
    _collect(function, torch.optim.Optimizer, found, {})
    return found


def _collect(value: Any, kind: type, found: list[Any], seen: dict[int, Any]) -> None:
    if id(value) in seen:
        return
    seen[id(value)] = value  # held, so that the number is not given to another object
    if isinstance(value, kind):
        found.append(value)
        return
    for item in _parts(value, kind):
        _collect(item, kind, found, seen)


def _parts(value: Any, kind: type) -> list[Any]:
    """Where the objects of a kind that a value uses may be."""
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        named = (value.__globals__.get(name) for name in value.__code__.co_names)
        used = [item for item in named if isinstance(item, kind)]
        return [
            *used,
            value.__closure__ or (),
            value.__defaults__ or (),
            value.__kwdefaults__ or {},
        ]
    if isinstance(value, types.CellType):
        try:
            return [value.cell_contents]
        except ValueError:  # not filled yet
            return []
    if isinstance(value, (type, types.ModuleType)):
        return []
    return [item for item in getattr(value, "__dict__", {}).values() if isinstance(item, kind)]


@contextlib.contextmanager
def called_modules() -> Iterator[list[torch.nn.Module]]:
    """The modules whose forward runs meanwhile, in order, as far as they are there afterwards: not
    a loss that is made at each call."""
    called: list[weakref.ref[torch.nn.Module]] = []

    def note(module: torch.nn.Module, _inputs: Any) -> None:
        called.append(weakref.ref(module))

    result: list[torch.nn.Module] = []
    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield result
    finally:
        handle.remove()
        alive = {id(module): module for ref in called if (module := ref()) is not None}
        result += alive.values()
