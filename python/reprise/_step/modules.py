"""The modules and optimizers that a function uses, as far as the function shows them."""

from __future__ import annotations

import contextlib
import functools
import threading
import types
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

Kind = type | tuple[type, ...]


def modules_of(function: Any) -> list[torch.nn.Module]:
    """Returns the modules that a function uses, as far as it shows them.

    The search looks at the function itself, at its closure, its defaults, the globals that it
    names, and the attributes of the object that it is a method of.
    """
    found: list[torch.nn.Module] = []
    _collect(function, torch.nn.Module, found, {})
    return found


def optimizers_of(function: Any) -> list[torch.optim.Optimizer]:
    """Returns the optimizers that a function uses. The search is that of `modules_of()`."""
    found: list[torch.optim.Optimizer] = []
    _collect(function, torch.optim.Optimizer, found, {})
    return found


def schedules_of(function: Any) -> list[Any]:
    """Returns the schedules of learning rates, and the gradient scalers, that a function uses.

    The search is that of `modules_of()`. A schedule that runs others stands for them, too.
    """
    found: list[Any] = []
    _collect(function, (LRScheduler, torch.amp.GradScaler), found, {})
    for one in found:  # It grows while it is walked through.
        found += [inner for inner in getattr(one, "_schedulers", ()) if inner not in found]
    return found


def _is(value: Any, kind: Kind) -> bool:
    """Says whether a value is of a kind. Objects may answer that question by an exception."""
    try:
        return isinstance(value, kind)
    except Exception:
        return False


def _collect(value: Any, kind: Kind, found: list[Any], seen: dict[int, Any]) -> None:
    """Appends all objects of a kind that a value uses to `found`."""
    if id(value) in seen:
        return
    seen[id(value)] = value  # The value stays alive, so that no other object gets its id.
    if _is(value, kind):
        found.append(value)
        return
    for item in _parts(value, kind):
        _collect(item, kind, found, seen)


def _parts(value: Any, kind: Kind) -> list[Any]:
    """Returns the parts of a value in which objects of a kind may be."""
    if _is(value, (list, tuple)):
        return list(value)
    if _is(value, dict):
        return list(value.values())
    if _is(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if _is(value, types.MethodType):
        return [value.__self__, value.__func__]
    if _is(value, types.FunctionType):
        named = (value.__globals__.get(name) for name in value.__code__.co_names)
        used = [item for item in named if _is(item, kind)]
        return [
            *used,
            value.__closure__ or (),
            value.__defaults__ or (),
            value.__kwdefaults__ or {},
        ]
    if _is(value, types.CellType):
        try:
            return [value.cell_contents]
        except ValueError:  # The cell is not filled yet.
            return []
    if _is(value, (type, types.ModuleType)):
        return []
    try:
        own = value.__dict__
    except Exception:  # It has none, or it answers in a way of its own.
        return []
    return [item for item in own.values() if _is(item, kind)]


def outermost(modules: list[torch.nn.Module]) -> list[torch.nn.Module]:
    """Returns the modules that are no parts of other modules of the list."""
    parts = {id(part) for module in modules for part in module.modules() if part is not module}
    return [module for module in modules if id(module) not in parts]


@contextlib.contextmanager
def called_modules() -> Iterator[list[torch.nn.Module]]:
    """Gives a list. After the scope, the list has the modules whose forward ran in it, in order.

    Modules that another thread calls meanwhile are not in it.

    A module that is gone by then is not in the list, for example a loss that is made at each call.
    """
    called: list[weakref.ref[torch.nn.Module]] = []
    owner = threading.get_ident()

    def note(module: torch.nn.Module, _inputs: Any) -> None:
        if threading.get_ident() == owner:
            called.append(weakref.ref(module))

    result: list[torch.nn.Module] = []
    handle = torch.nn.modules.module.register_module_forward_pre_hook(note)
    try:
        yield result
    finally:
        handle.remove()
        alive = {id(module): module for ref in called if (module := ref()) is not None}
        result += alive.values()


class _Parameters(torch.nn.Module):
    """A module for parameters that belong to no known module."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__()
        self._parameters.update((str(i), p) for i, p in enumerate(parameters))


def with_optimizers(modules: list[torch.nn.Module], step: Any) -> list[torch.nn.Module]:
    """Returns the modules, and one more for the other parameters of the step's optimizers.

    The step may drop the gradients of these parameters, too, so the runtime has to know them.
    """
    known = {id(p) for module in modules for p in module.parameters()}
    rest = [
        p
        for optimizer in optimizers_of(step)
        for group in optimizer.param_groups
        for p in group["params"]
        if id(p) not in known
    ]
    return [*modules, _Parameters(rest)] if rest else modules
