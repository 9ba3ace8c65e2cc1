"""What captured steps keep in another memory between their calls, and who brings it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

_Fetchers = list[weakref.WeakMethod[Any]]
_of_optimizer: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Fetchers] = (
    weakref.WeakKeyDictionary()
)
_of_module: weakref.WeakKeyDictionary[nn.Module, _Fetchers] = weakref.WeakKeyDictionary()


def fetch_before_reading(optimizer: torch.optim.Optimizer, fetch: Callable[[], None]) -> None:
    """Lets `optimizer.state_dict()` and saved states call a method first.

    Args:
        optimizer: The optimizer whose state may be away.
        fetch: A method that brings it back. It is not called once its object is gone.
    """
    known = _of_optimizer.get(optimizer)
    if known is None:
        known = _of_optimizer[optimizer] = []
        optimizer.register_state_dict_pre_hook(fetch_state)
    _add(known, fetch)


def fetch_before_state_dict(modules: Iterable[nn.Module], fetch: Callable[[], None]) -> None:
    """Lets `state_dict()` and `load_state_dict()` of modules and their parts call a method first.

    Args:
        modules: The modules whose parameters may be away.
        fetch: As for `fetch_before_reading()`.
    """
    for part in (part for module in modules for part in module.modules()):
        known = _of_module.get(part)
        if known is None:
            known = _of_module[part] = []
            part.register_state_dict_pre_hook(_before_state_dict)  # type: ignore[no-untyped-call]
            part.register_load_state_dict_pre_hook(_before_load)  # type: ignore[no-untyped-call]
        _add(known, fetch)


def fetch_state(optimizer: torch.optim.Optimizer) -> None:
    """Brings back all state of the optimizer that captured steps have moved away."""
    _call(_of_optimizer.get(optimizer, []))


def fetch_parameters(module: nn.Module) -> None:
    """Brings back all parameters of the module that captured steps have moved away."""
    for part in module.modules():
        _call(_of_module.get(part, []))


def _before_state_dict(module: nn.Module, prefix: str, keep_vars: bool) -> None:
    del prefix, keep_vars
    _call(_of_module.get(module, []))


def _before_load(module: nn.Module, *rest: Any) -> None:
    del rest
    _call(_of_module.get(module, []))


def _add(known: _Fetchers, fetch: Callable[[], None]) -> None:
    if all(method() != fetch for method in known):
        known.append(weakref.WeakMethod(fetch))


def _call(known: _Fetchers) -> None:
    for method in known:
        fetch = method()
        if fetch is not None:
            fetch()
