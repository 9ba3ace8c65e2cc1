"""What a step may change in Python, as it was before: for runs of a step that are only tried.

A step counts tokens, appends its loss to a list, or sets an attribute. A run that measures, records
or tries a mode is no step of the training, so what it changed is put back.
"""

from __future__ import annotations

import dis
import functools
import random
import types
import warnings
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from .library import file_of, is_installed, is_library
from .places import place_in, place_of
from .tree import SIMPLE

# The walk ends behind so many objects, and does not look at the items of larger containers.
MOST_OBJECTS = 50_000
LARGEST_VISITED = 1024
LARGEST_COPIED = 1_000_000
# From an object of an installed library, such as a trainer, the walk goes so many such objects on.
DEEPEST_IN_LIBRARIES = 3
# PyTorch's own tables of a module. Trials put back what is in the tensors; see Before.
_TABLES = ("_parameters", "_buffers", "_modules")

PutBack = Callable[[], None]


class PythonState:
    """The containers, attributes, closures and globals that a step can reach, as they are now.

    Objects of Python, PyTorch and NumPy are left alone, but for containers and random generators,
    because they may stand for something outside of Python: a file, a queue, a thread. An iterator
    that was advanced cannot be put back: a RuntimeWarning names it.

    Args:
        roots: Functions and modules from which the step reaches the rest.
    """

    def __init__(self, roots: Sequence[Any]) -> None:
        self._notes: list[PutBack] = []
        self._seen: dict[int, Any] = {}  # The values stay alive, so that their ids stay their own.
        waiting: deque[tuple[Any, int]] = deque((root, 0) for root in roots)
        while waiting and len(self._seen) < MOST_OBJECTS:
            value, depth = waiting.popleft()
            if type(value) in weakref.ProxyTypes or issubclass(type(value), SIMPLE):
                continue
            if id(value) in self._seen:
                continue
            self._seen[id(value)] = value
            try:
                waiting.extend(self._note(value, depth))
            except Exception:  # The object answers what it is asked in a way of its own.
                continue

    def put_back(self) -> None:
        """Puts everything back that is not as it was. It may be called many times."""
        for put_back in self._notes:
            put_back()

    def _note(self, value: Any, depth: int) -> Iterable[tuple[Any, int]]:
        """Notes one value. Returns what can be reached from it, with its depth in libraries."""
        kind = type(value)
        if issubclass(kind, (torch.Tensor, torch.optim.Optimizer, types.ModuleType, type)):
            return ()
        if issubclass(kind, types.FunctionType):
            return ((item, depth) for item in self._function(value))
        if issubclass(kind, types.MethodType):
            return ((value.__self__, depth), (value.__func__, depth))
        if issubclass(kind, functools.partial):
            return ((value.func, depth), (value.args, depth), (value.keywords, depth))
        if issubclass(kind, tuple):
            return ((item, depth) for item in value)
        if issubclass(kind, (list, dict, set, bytearray, deque)):
            return ((item, depth) for item in self._container(value))
        return self._object(value, depth)

    def _function(self, function: types.FunctionType) -> Iterator[Any]:
        for cell in function.__closure__ or ():
            try:
                held = cell.cell_contents
            except ValueError:  # The cell is not filled yet.
                continue
            self._notes.append(functools.partial(_fill, cell, held))
            yield held
        if is_installed(function.__code__.co_filename):
            return
        table = function.__globals__
        for code in _codes(function.__code__):
            for name in code.co_names:
                if name in table:
                    yield table[name]
            for name in _written_globals(code):
                old = table.get(name, _MISSING)
                self._notes.append(functools.partial(_put_entry, table, name, old))
        yield from function.__defaults__ or ()
        yield from (function.__kwdefaults__ or {}).values()

    def _container(self, value: Any) -> Iterator[Any]:
        if len(value) > LARGEST_COPIED:
            return
        if isinstance(value, dict):
            items = dict(value)
            self._notes.append(lambda: _put_dict(value, items))
            inside: Iterable[Any] = items.values()
        elif isinstance(value, set):
            members = set(value)
            self._notes.append(lambda: _put_set(value, members))
            return
        else:
            line = list(value)
            self._notes.append(lambda: _put_sequence(value, line))
            inside = () if isinstance(value, bytearray) else line
        if len(value) <= LARGEST_VISITED:
            yield from inside

    def _source(self, value: Any) -> bool:
        """Notes a source that gives something else each time. Returns whether the value is one."""
        kind = type(value)
        if issubclass(kind, (random.Random, torch.Generator)):
            get, put = ("getstate", "setstate") if issubclass(kind, random.Random) else (
                "get_state", "set_state"
            )  # fmt: skip
            state = getattr(value, get)()
            self._notes.append(lambda: getattr(value, put)(state))
        elif kind.__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
            bits = value.bit_generator
            state = bits.state
            self._notes.append(lambda: setattr(bits, "state", state))
        elif issubclass(kind, types.GeneratorType):
            self._notes.append(functools.partial(_tell, value, place_of, place_of(value)))
        elif hasattr(kind, "__next__") and hasattr(kind, "__iter__"):
            self._notes.append(functools.partial(_tell, value, place_in, place_in(value)))
        else:
            return False
        return True

    def _object(self, value: Any, depth: int) -> Iterator[tuple[Any, int]]:
        if self._source(value):
            return
        own = getattr(value, "__dict__", None) if _shows_attributes(value) else None
        if not isinstance(own, dict):
            return
        file = file_of(type(value))
        deeper = depth + 1 if is_installed(file) else depth
        if isinstance(value, torch.nn.Module):
            # A module of PyTorch counts nothing in Python; its children may.
            if not is_library(file):
                self._attributes(own)
            for name in _TABLES:
                table = own.get(name)
                if isinstance(table, dict):
                    old = dict(table)
                    self._notes.append(functools.partial(_put_dict, table, old))
            yield from ((child, depth) for child in (own.get("_modules") or {}).values())
        elif is_library(file) and not isinstance(value, types.SimpleNamespace):
            return
        else:
            self._attributes(own)
        if deeper > DEEPEST_IN_LIBRARIES:
            return
        yield from ((item, deeper) for name, item in own.items() if name not in _TABLES)

    def _attributes(self, own: dict[str, Any]) -> None:
        old = dict(own)
        self._notes.append(lambda: _put_dict(own, old))


_MISSING = object()


def _shows_attributes(value: Any) -> bool:
    """Says whether an object has attributes that can be read without running code of its own."""
    return isinstance(
        next((vars(k)["__dict__"] for k in type(value).__mro__ if "__dict__" in vars(k)), None),
        types.GetSetDescriptorType,
    )


def _tell(iterator: Any, place: Callable[[Any], Any], before: Any) -> None:
    """Warns if an iterator was advanced."""
    if place(iterator) == before:
        return
    name = getattr(iterator, "__qualname__", type(iterator).__qualname__)
    warnings.warn(
        f"a run of the step that was only tried has advanced the iterator {name}, which cannot be "
        "put back. Take its items outside of the step, and hand them over as arguments",
        RuntimeWarning,
        stacklevel=2,
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.lru_cache(maxsize=1024)
def _written_globals(code: types.CodeType) -> tuple[str, ...]:
    """Returns the names of the globals that code binds or deletes."""
    binding = ("STORE_GLOBAL", "DELETE_GLOBAL")
    return tuple({str(i.argval) for i in dis.get_instructions(code) if i.opname in binding})


def _fill(cell: types.CellType, held: Any) -> None:
    try:
        same = cell.cell_contents is held
    except ValueError:
        same = False
    if not same:
        cell.cell_contents = held


def _put_entry(table: dict[str, Any], name: str, old: Any) -> None:
    if old is _MISSING:
        table.pop(name, None)
    elif table.get(name, _MISSING) is not old:
        table[name] = old


def _same(now: Iterable[Any], old: Iterable[Any]) -> bool:
    return all(a is b for a, b in zip(now, old, strict=True))


def _put_dict(value: dict[Any, Any], old: dict[Any, Any]) -> None:
    if len(value) == len(old) and _same(value, old) and _same(value.values(), old.values()):
        return
    # A class of the user's may count its changes. This is none.
    plain = OrderedDict if isinstance(value, OrderedDict) else dict
    plain.clear(value)
    for key, item in old.items():
        plain.__setitem__(value, key, item)


def _put_set(value: set[Any], old: set[Any]) -> None:
    if value != old:
        value.clear()
        value.update(old)


def _put_sequence(value: Any, old: list[Any]) -> None:
    if len(value) == len(old) and _same(value, old):
        return
    if isinstance(value, deque):
        value.clear()
        value.extend(old)
    else:
        value[:] = old
