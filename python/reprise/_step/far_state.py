"""Optimizers whose state a captured step keeps in another memory, and who brings it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

_fetchers: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[weakref.WeakMethod[Any]]] = (
    weakref.WeakKeyDictionary()
)


def fetch_before_reading(optimizer: torch.optim.Optimizer, fetch: Callable[[], None]) -> None:
    """Lets `optimizer.state_dict()` and saved states call a method first.

    Args:
        optimizer: The optimizer whose state may be away.
        fetch: A method that brings it back. It is not called once its object is gone.
    """
    known = _fetchers.get(optimizer)
    if known is None:
        known = _fetchers[optimizer] = []
        optimizer.register_state_dict_pre_hook(fetch_state)
    if all(method() != fetch for method in known):
        known.append(weakref.WeakMethod(fetch))


def fetch_state(optimizer: torch.optim.Optimizer) -> None:
    """Brings back all state of the optimizer that captured steps have moved away."""
    for method in _fetchers.get(optimizer, []):
        fetch = method()
        if fetch is not None:
            fetch()
