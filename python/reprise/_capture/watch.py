"""Values of a program that can be read again together, to see what has changed."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from itertools import zip_longest
from operator import is_
from typing import Any

import torch

from .._step.tree import is_simple

MISSING = "(nothing)"
# The name of all items of a long list together.
WHOLE = " (items)"
# Names behind a path, and the values that they stand for.
State = tuple[tuple[str, ...], tuple[Any, ...]]
# Dicts, objects whose classes matter, and tensors.
Sources = tuple[list[dict[str, Any]], list[Any], list[torch.Tensor]]


def all_simple(values: Iterable[Any]) -> bool:
    return all(is_simple(value) for value in values)


def same(before: Any, now: Any) -> bool:
    """Says whether two values are interchangeable for a program that reads them."""
    if before is now:
        return True
    if type(before) is tuple and type(now) is tuple and all_simple(before):
        return before == now and list(map(type, before)) == list(map(type, now))
    if isinstance(before, types.FunctionType) and isinstance(now, types.FunctionType):
        return unwrapped(before) is unwrapped(now)
    return type(before) is type(now) and is_simple(before) and bool(before == now)


def unwrapped(function: Any) -> Any:
    """Returns the function below PyTorch's own wrappers.

    PyTorch puts a wrapper around `torch.manual_seed` when its compiler is first used, and the
    wrapper does the same.
    """
    while getattr(function, "__globals__", {}).get("__name__") == "torch._compile":
        inner = getattr(function, "__wrapped__", None)
        if inner is None:
            break
        function = inner
    return function


def text_of(value: Any) -> str:
    if is_simple(value):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (tuple, list)) and all_simple(value):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, types.FunctionType):
        return f"the function {value.__qualname__}"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    return f"an object of type {type(value).__qualname__}"


class Watch:
    """Some values that can be read again together, each under a name.

    Attributes:
        path: The name of what holds the values.
        read: It returns the names and the values as they are now.
        kind: The kind of state that the values are, for people.
        sources: The dicts, objects and tensors that `read` reads, if these are all that it reads.
        names: The names, as the program writes them behind the path.
        values: The values as they were.
    """

    __slots__ = ("kind", "names", "path", "read", "sources", "values")

    def __init__(
        self, path: str, read: Callable[[], State], kind: str, sources: Sources | None = None
    ) -> None:
        self.path = path
        self.read = read
        self.kind = kind
        self.sources = sources
        self.names, self.values = read()

    def holds(self) -> bool:
        """Says whether all values are as they were. The usual case compares identities only."""
        names, values = self.read()
        if len(values) == len(self.values) and all(map(is_, values, self.values)):
            return names is self.names or names == self.names
        if names != self.names or not all(map(same, self.values, values)):
            return False
        self.values = values
        return True

    def changes(self) -> list[tuple[str, Any, Any]]:
        """Returns the name, the value before and the value now of all that changed."""
        before = dict(zip(self.names, self.values, strict=True))
        now = dict(zip(*self.read(), strict=True))
        return [
            (self.path + name, before.get(name, MISSING), now.get(name, MISSING))
            for name in [*before, *(name for name in now if name not in before)]
            if name not in before or name not in now or not same(before[name], now[name])
        ]

    def difference(self) -> str:
        """Says in words what has changed. The text is empty if nothing has."""
        if self.holds():
            return ""
        for name, before, now in self.changes():
            if isinstance(before, bytes) and isinstance(now, bytes) and len(before) > 60:
                return f"{name} differs"
            if name.endswith(WHOLE) and isinstance(before, tuple) and isinstance(now, tuple):
                pairs = enumerate(zip_longest(before, now, fillvalue=MISSING))
                at, (before, now) = next((i, pair) for i, pair in pairs if not same(*pair))
                name = f"{name[: -len(WHOLE)]}[{at}]"
            return f"{name} was {text_of(before)} and is {text_of(now)}"
        self.names, self.values = self.read()
        return ""

    def forget(self, is_lost: Callable[[str], bool]) -> None:
        """Watches no longer the values whose names, with the path, are lost."""
        inner, path = self.read, self.path

        def read() -> State:
            names, values = inner()
            kept = [i for i, name in enumerate(names) if not is_lost(path + name)]
            return tuple(names[i] for i in kept), tuple(values[i] for i in kept)

        self.read = read
        self.names, self.values = read()
