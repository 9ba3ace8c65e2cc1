"""Guards: what a step reads from Python, compared before each call of its recording.

A captured step does not run Python again, so a number that Python gave to an operation stays that
of the capture. The guards notice when the program says something else by now. They watch what the
function shows: its closure, defaults and code, the globals and attributes that its code names, and
all modules.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import io
import os
import random
import sys
import sysconfig
import threading
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import is_
from typing import Any

import torch

from ._torch import _runtime
from ._tree import SIMPLE
from .errors import InputError

# A container with more items is watched by its length only.
LARGEST_CONTAINER = 1024
# An array of NumPy with more bytes is not watched.
LARGEST_ARRAY = 16384
# Names that code reads the environment by.
ENVIRONMENT = {"environ", "environb", "getenv"}
# Names by which code reads attributes whose names it computes.
BY_NAME = {"getattr", "vars", "__dict__", "attrgetter"}
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
HOOKS_OF_ALL = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
    "_global_backward_pre_hooks",
)  # fmt: skip
OF_TENSORS = ("_parameters", "_buffers", "_modules")
MISSING = "(nothing)"

_LIBRARIES = tuple(
    os.path.realpath(path) + os.sep
    for path in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
)
_SETTINGS: dict[str, Callable[[], Any]] = {
    "torch.get_default_dtype()": torch.get_default_dtype,
    "torch.are_deterministic_algorithms_enabled()": torch.are_deterministic_algorithms_enabled,
    "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision,
    "torch.backends.cuda.flash_sdp_enabled()": torch.backends.cuda.flash_sdp_enabled,
    "torch.backends.cuda.mem_efficient_sdp_enabled()":
        torch.backends.cuda.mem_efficient_sdp_enabled,
    "torch.backends.cuda.math_sdp_enabled()": torch.backends.cuda.math_sdp_enabled,
    "torch.is_anomaly_enabled()": torch.is_anomaly_enabled,
}  # fmt: skip


# Names behind a path, and the values that they stand for.
_State = tuple[tuple[str, ...], tuple[Any, ...]]
# Dicts, objects whose classes matter, and tensors.
_Sources = tuple[list[dict[str, Any]], list[Any], list[torch.Tensor]]


def _is_simple(value: Any) -> bool:
    return isinstance(value, (*SIMPLE, range, torch.Size, frozenset))


def _same(before: Any, now: Any) -> bool:
    """Says whether two values are interchangeable for a program that reads them."""
    if before is now:
        return True
    if type(before) is tuple and type(now) is tuple and _all_simple(before):
        return before == now and list(map(type, before)) == list(map(type, now))
    return type(before) is type(now) and _is_simple(before) and bool(before == now)


def _text(value: Any) -> str:
    if _is_simple(value):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, torch.Tensor):
        return f"a tensor of shape {list(value.shape)}"
    if isinstance(value, (tuple, list)) and _all_simple(value):
        text = repr(value)
        return text if len(text) <= 60 else text[:57] + "..."
    if isinstance(value, types.FunctionType):
        return f"the function {value.__qualname__}"
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    return f"an object of type {type(value).__qualname__}"


class _Watch:
    """Some values that can be read again together, each under a name.

    Attributes:
        path: The name of what holds the values.
        read: It returns the names and the values as they are now.
        sources: The dicts, objects and tensors that `read` reads, if these are all that it reads.
        names: The names, as the program writes them behind the path.
        values: The values as they were.
    """

    __slots__ = ("names", "path", "read", "sources", "values")

    def __init__(
        self, path: str, read: Callable[[], _State], sources: _Sources | None = None
    ) -> None:
        self.path = path
        self.read = read
        self.sources = sources
        self.names, self.values = read()

    def holds(self) -> bool:
        """Says whether all values are as they were. The usual case compares identities only."""
        names, values = self.read()
        if len(values) == len(self.values) and all(map(is_, values, self.values)):
            return names is self.names or names == self.names
        if names != self.names or not all(map(_same, self.values, values)):
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
            if name not in before or name not in now or not _same(before[name], now[name])
        ]

    def difference(self) -> str:
        """Says in words what has changed. The text is empty if nothing has."""
        if self.holds():
            return ""
        for name, before, now in self.changes():
            return f"{name} was {_text(before)} and is {_text(now)}"
        self.names, self.values = self.read()
        return ""

    def forget(self, lost: set[str]) -> None:
        """Watches no longer the values with these names."""
        inner, path = self.read, self.path

        def read() -> _State:
            names, values = inner()
            kept = [i for i, name in enumerate(names) if path + name not in lost]
            return tuple(names[i] for i in kept), tuple(values[i] for i in kept)

        self.read = read
        self.names, self.values = read()


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _is_library(file: str | None) -> bool:
    """Says whether a file belongs to Python, PyTorch, NumPy or this package."""
    if not file or file.startswith("<frozen"):
        return True
    path = os.path.realpath(file)
    if "site-packages" not in path and path.startswith(_LIBRARIES):
        return True
    return path.startswith(_PACKAGES)


def _is_installed(file: str | None) -> bool:
    """Says whether a file belongs to a library, an installed one included."""
    return _is_library(file) or "site-packages" in str(file) or "dist-packages" in str(file)


def _folder(module: types.ModuleType) -> str:
    return os.path.dirname(os.path.realpath(module.__file__ or "")) + os.sep


_PACKAGES: tuple[str, ...] = (_folder(torch), os.path.dirname(os.path.realpath(__file__)) + os.sep)
if "numpy" in sys.modules:
    _PACKAGES += (_folder(sys.modules["numpy"]),)


def _file_of(kind: type) -> str | None:
    module = sys.modules.get(kind.__module__)
    return None if module is None else getattr(module, "__file__", None)


class _Walk:
    """Makes the watches of all that a function shows."""

    def __init__(self, names: set[str]) -> None:
        self.known = names  # The names in the code that an earlier walk has met.
        self.names: set[str] = set()
        self.watches: list[_Watch] = []
        self.generators: list[tuple[str, Callable[[], Any]]] = []
        self._seen: dict[int, Any] = {}
        self._kinds: set[type] = set()  # of modules
        self._in_module = False
        self._kinds_seen: set[type] = set()

    def visit(self, value: Any, path: str) -> None:
        """Watches a value and all values that can be reached from it."""
        if isinstance(value, (*SIMPLE, types.BuiltinFunctionType)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # The value stays alive, so that its id stays its own.
        if isinstance(value, torch.Tensor):
            self._tensor(value, path)
        elif isinstance(value, torch.nn.Module):
            self._module(value, path)
        elif isinstance(value, torch.optim.Optimizer):
            self._optimizer(value, path)
        elif isinstance(value, types.FunctionType):
            self._function(value, path)
        elif isinstance(value, types.MethodType):
            self.visit(value.__self__, path.rpartition(".")[0] or path)
            self.visit(value.__func__, path)
        elif isinstance(value, functools.partial):
            self._watch(f"{path}.func", lambda: (("",), (value.func,)))
            for part in ("func", "args", "keywords"):
                self.visit(getattr(value, part), f"{path}.{part}")
        elif isinstance(value, Mapping):
            self._mapping(value, path)
        elif type(value) is tuple:
            for i, item in enumerate(value):  # Nothing but its items can change.
                self.visit(item, f"{path}[{i}]")
        elif isinstance(value, (list, tuple, deque)):
            self._sequence(value, path)
        elif isinstance(value, (set, frozenset)):
            self._watch(path, lambda: _members(value))
        elif isinstance(value, types.ModuleType):
            self._python_module(value, path)
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            self._array(value, path)
        elif isinstance(value, contextvars.ContextVar):
            self._watch(path, lambda: (("",), (value.get(None),)))
        elif not self._generator(value, path):
            self._object(value, path)

    def _watch(
        self, path: str, read: Callable[[], _State], sources: _Sources | None = None
    ) -> None:
        watch = _Watch(path, read, sources)
        self.watches.append(watch)
        for name, value in zip(watch.names, watch.values, strict=True):
            self.visit(value, path + name)

    def _code(self, code: types.CodeType) -> None:
        for part in _codes(code):
            self.names.update(part.co_names, part.co_freevars)
            self.names.update(c for c in part.co_consts if isinstance(c, str) and c.isidentifier())

    def _function(self, function: types.FunctionType, path: str) -> None:
        code = function.__code__
        # A decorator of a library, such as torch.no_grad(), has the user's function in its closure.
        if function.__dict__:
            self._attributes(function, path)
        if not _is_installed(code.co_filename):
            self._code(code)
            names = tuple(
                sorted(
                    name
                    for part in _codes(code)
                    for name in part.co_names
                    if name in function.__globals__
                )
            )
            table = function.__globals__
            self._watch("", lambda: (names, tuple(table.get(name, MISSING) for name in names)))
            self._watch(path, lambda: ((".__code__",), (function.__code__,)))
            self._watch(path, lambda: _defaults(function))
        cells = function.__closure__ or ()
        if cells:
            self._watch("", lambda: (code.co_freevars, tuple(map(_contents, cells))))

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        if len(value) > LARGEST_CONTAINER:
            self._watch(path, lambda: ((".__len__()",), (len(value),)))
        else:
            self._watch(
                path,
                lambda: (tuple(f"[{key!r}]" for key in value), tuple(value.values())),
                ([value], [], []) if type(value) is dict else None,
            )

    def _sequence(self, value: Any, path: str) -> None:
        if len(value) > LARGEST_CONTAINER:
            self._watch(path, lambda: ((".__len__()",), (len(value),)))
        else:
            self._watch(path, lambda: (_positions(len(value)), tuple(value)))
        if hasattr(value, "_fields") or type(value) not in (list, tuple, deque):
            self._object(value, path)

    def _optimizer(self, value: torch.optim.Optimizer, path: str) -> None:
        """Watches only what the code names, because schedules change hyperparameters elsewhere."""
        for i, group in enumerate(value.param_groups):
            keys = tuple(k for k in group if k in self.known and k != "params")
            self._watch(
                f"{path}.param_groups[{i}]",
                functools.partial(_entries, group, keys),
            )  # fmt: skip

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        if not value.is_leaf:
            return  # A result of an earlier operation has no state of its own.
        own = value.__dict__
        self._watch(path, functools.partial(_of_tensor, value, self.known), ([own], [], [value]))

    def _module(self, module: torch.nn.Module, path: str) -> None:
        own = module.__dict__
        tables = [own[name] for name in OF_TENSORS if name in own]
        hooks = [own[name] for name in HOOKS if name in own]

        def read() -> _State:
            named = {f".{name}": value for name, value in own.items() if not _is_record(name)}
            for table in tables:
                named.update((f".{name}", item) for name, item in table.items())
            for name in HOOKS:
                of_kind = enumerate(own.get(name, {}).values())
                named.update((f".{name}[{i}]", hook) for i, hook in of_kind)
            named[".__class__"] = type(module)
            return tuple(named), tuple(named.values())

        outside, self._in_module = self._in_module, True
        self._watch(path, read, ([own, *tables, *hooks], [module], []))
        self._in_module = outside
        kind = type(module)
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._watch(kind.__qualname__, lambda: ((".forward",), (kind.forward,)))
            self._class(kind, path)

    def _class(self, kind: type, path: str) -> None:
        """Watches the attributes of a user's class that the code names."""
        for base in kind.__mro__:
            if base is object or base in self._kinds_seen or _is_installed(_file_of(base)):
                continue
            self._kinds_seen.add(base)
            for name, item in tuple(vars(base).items()):
                if isinstance(item, property) and name in self.known:
                    item = item.fget
                elif isinstance(item, (staticmethod, classmethod)):
                    item = item.__func__
                called = name in self.known or name == "forward" or name.startswith("__")
                if isinstance(item, types.FunctionType) and called:
                    self.visit(item, f"{base.__qualname__}.{name}")
            self._attributes(base, base.__qualname__)
        meta = type(kind)
        if meta is not type and not _is_installed(_file_of(meta)) and id(meta) not in self._seen:
            self._seen[id(meta)] = meta
            self._class(meta, path)

    def _attributes(self, value: Any, path: str) -> None:
        """Watches the attributes that the code names, those that come later included."""
        known = self.known
        # The code may read attributes by names that it computes, and the code of an installed
        # library, whose names are not known, reads those of objects in its modules.
        every = bool(known & BY_NAME) or (
            self._in_module and _is_installed(_file_of(type(value))) and not isinstance(value, type)
        )

        def read() -> _State:
            own = vars(value)
            names = [name for name in own if (name in known or every) and not name.startswith("__")]
            return tuple(f".{name}" for name in names), tuple(own[name] for name in names)

        self._watch(path, read)

    def _generator(self, value: Any, path: str) -> bool:
        """Notes a source that gives something else each time. Returns whether the value is one."""
        if isinstance(value, random.Random):
            self.generators.append((path, value.getstate))
        elif type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
            self.generators.append((path, lambda: repr(value.bit_generator.state)))
        elif isinstance(value, types.GeneratorType):
            self.generators.append((path, lambda: _place_of(value)))
        elif hasattr(value, "__next__") and hasattr(value, "__iter__"):
            self.generators.append((path, lambda: _reduced(value)))
        else:
            return False
        return True

    def _python_module(self, value: types.ModuleType, path: str) -> None:
        root = value.__name__.partition(".")[0]
        file = getattr(value, "__file__", None)
        if root not in sys.stdlib_module_names and (file is None or not _is_installed(file)):
            self._attributes(value, path)
            return
        # A library stays as it is, but for a function of it that the program replaces.
        own = vars(value)
        names = tuple(name for name in own if name in self.known)
        labels = tuple(f".{name}" for name in names)
        self.watches.append(
            _Watch(path, lambda: (labels, tuple(own.get(name, MISSING) for name in names)))
        )

    def _array(self, value: Any, path: str) -> None:
        """Watches the content of a small array, from which the step may take numbers."""
        if value.nbytes <= LARGEST_ARRAY and not value.dtype.hasobject:
            self._watch(path, lambda: ((".tobytes()",), (value.tobytes(),)))

    def _object(self, value: Any, path: str) -> None:
        if isinstance(value, type):
            if not _is_library(_file_of(value)):
                self._class(value, path)
            return
        kind = type(value)
        if isinstance(value, threading.local) or hasattr(value, "__dict__"):
            if _is_library(_file_of(kind)) and not isinstance(
                value, (threading.local, types.SimpleNamespace)
            ):
                return
            self._attributes(value, path)
        slots = tuple(
            name
            for base in kind.__mro__
            for name in _as_tuple(getattr(base, "__slots__", ()))
            if name in self.known
        )
        if slots and not _is_library(_file_of(kind)):
            labels = tuple(f".{name}" for name in slots)
            self._watch(
                path, lambda: (labels, tuple(getattr(value, name, MISSING) for name in slots))
            )
        if not _is_library(_file_of(kind)):
            self._class(kind, path)


@functools.cache
def _positions(length: int) -> tuple[str, ...]:
    return tuple(f"[{i}]" for i in range(length))


def _as_tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _all_simple(values: Iterable[Any]) -> bool:
    return all(_is_simple(value) for value in values)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The cell is not filled yet.
        return MISSING


def _of_tensor(tensor: torch.Tensor, known: set[str]) -> _State:
    named: dict[str, Any] = {".requires_grad": tensor.requires_grad}
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        table = getattr(tensor, name, None) or {}
        named.update((f".{name}[{i}]", hook) for i, hook in enumerate(table.values()))
    named.update((f".{name}", v) for name, v in tensor.__dict__.items() if name in known)
    return tuple(named), tuple(named.values())


def _is_record(name: str) -> bool:
    """Says whether an attribute of a module is one of PyTorch's tables of hooks and states."""
    return (
        name in (*OF_TENSORS, *HOOKS, "_non_persistent_buffers_set", "_is_full_backward_hook")
        or "_state_dict_" in name
        or name.endswith(("_always_called", "_with_kwargs"))
    )


def _entries(table: dict[str, Any], keys: tuple[str, ...]) -> _State:
    return tuple(f"[{key!r}]" for key in keys), tuple(table.get(key, MISSING) for key in keys)


def _defaults(function: types.FunctionType) -> _State:
    code, defaults = function.__code__, function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    keywords = function.__kwdefaults__ or {}
    names = (*arguments[len(arguments) - len(defaults) :], *keywords)
    return tuple(f"({name}=)" for name in names), (*defaults, *keywords.values())


def _members(value: Any) -> _State:
    if _all_simple(value):
        return ("",), (frozenset(value),)
    return (".__len__()",), (len(value),)


def _global_hooks() -> _State:
    of_all = torch.nn.modules.module
    hooks = [
        (name, i, hook)
        for name in HOOKS_OF_ALL
        for i, hook in enumerate(getattr(of_all, name, {}).values())
        if not _is_library(getattr(getattr(hook, "__code__", None), "co_filename", "?"))
    ]
    return tuple(f".{name}[{i}]" for name, i, _ in hooks), tuple(hook for _, _, hook in hooks)


def _place_of(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, repr(frame.f_locals))


def _reduced(iterator: Any) -> str:
    """Returns a text of how far an iterator is. It is empty for an iterator that cannot say it."""
    if isinstance(iterator, io.IOBase):
        return ""
    try:
        return repr(iterator.__reduce__())
    except Exception:  # The iterator is the user's own, and may raise anything.
        return ""


def _shared_generators() -> dict[str, Any]:
    """Returns the states of the generators that all of Python's and NumPy's functions share."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *rest)
    return states


def _put_back(state_of_random: Any, state_of_numpy: Any) -> None:
    random.setstate(state_of_random)
    if state_of_numpy is not None:
        sys.modules["numpy"].random.set_state(state_of_numpy)


class Guards:
    """What a step reads from Python.

    The watches are made behind the first recorded run. A run that changes what they see is one
    whose Python matters, so the step is refused.

    Args:
        functions: The functions that a call of the recording stands for.
        modules: The modules of the step, beside those that the functions show.
        unguarded: The names of state that may change.
    """

    def __init__(
        self,
        functions: list[Callable[..., Any]],
        modules: list[torch.nn.Module],
        unguarded: tuple[str, ...],
    ) -> None:
        self._functions = functions
        self._modules = modules
        self._unguarded = unguarded
        self._files: set[str] = set()
        self._watched = _runtime.Watched()
        self._fast: dict[int, _Watch] = {}  # by number in `_watched`
        self._watches: list[_Watch] | None = None
        self._generators: list[tuple[str, Callable[[], Any], Any]] = []
        self._shared = _shared_generators()
        numpy = sys.modules.get("numpy")
        self._random = random.getstate(), None if numpy is None else numpy.random.get_state()
        self._changed: dict[str, tuple[Any, Any]] = {}
        self._lost: set[str] = set()
        self._draws: list[str] = []

    def after_run(self) -> None:
        """Notes what a recorded run of the function has changed."""
        shared = _shared_generators()
        self._draws += [name for name, state in shared.items() if state != self._shared.get(name)]
        self._shared = shared
        if self._watches is not None:
            self._draws += [path for path, read, state in self._generators if read() != state]
            self._changed = {}
            for watch in self._watches:
                if watch.holds():
                    continue
                for name, before, now in watch.changes():
                    if self._may_change(name):
                        continue
                    if _matters(before, now):
                        self._changed[name] = before, now
                    else:
                        self._lost.add(name)
        self._walk()

    def _walk(self) -> None:
        names: set[str] = set()
        while True:
            walk = _Walk(names)
            for function in self._functions:
                walk.visit(function, getattr(function, "__name__", "step"))
            for i, module in enumerate(self._modules):
                walk.visit(module, f"modules[{i}]")
            if walk.names <= names:
                break
            names |= walk.names
        self._watches = walk.watches
        self._generators = [(path, read, read()) for path, read in walk.generators]
        labels = tuple(_SETTINGS)
        self._watches.append(
            _Watch("", lambda: (labels, tuple(read() for read in _SETTINGS.values())))
        )
        self._watches.append(_Watch("torch.nn.modules.module", _global_hooks))
        if names & ENVIRONMENT:
            self._watches.append(
                _Watch("os.environ", lambda: (
                    tuple(f"[{key!r}]" for key in os.environ), tuple(os.environ.values())
                ))
            )  # fmt: skip

    def settle(self) -> None:
        """Ends the recording.

        Raises:
            InputError: A run of the function has changed what it reads from Python, or has drawn
                from a generator of Python or NumPy.
        """
        _put_back(*self._random)
        if self._draws:
            raise InputError(
                f"the step cannot be captured: it takes something from {self._draws[0]}, which "
                "gives something else at each call, and a captured step would keep what it got. "
                "Draw before the step, and hand it over as an input"
            )
        if self._changed:
            name, (before, now) = next(iter(self._changed.items()))
            raise InputError(
                f"the step cannot be captured: each call changes {name} (from {_text(before)} to "
                f"{_text(now)}), and a captured step does not run Python again. Change it outside "
                "the step, or make it a tensor that the step writes in place"
            )
        assert self._watches is not None
        watches, self._watches = self._watches, []
        for watch in watches:
            if watch.sources is None:
                self._watches.append(watch)
            else:
                self._fast[self._watched.add(*watch.sources)] = watch
        for path in sorted(self._files):
            self._watches.append(_Watch(path, functools.partial(_state_of_file, path)))
        for watch in [*self._watches, *self._fast.values()]:
            lost = {
                watch.path + name
                for name in watch.names
                if watch.path + name in self._lost or self._may_change(watch.path + name)
            }
            if lost:
                watch.forget(lost)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Notes the files that the functions read in the scope."""
        _note_opened_files()
        before, _opened.now = _opened.now, self._files
        try:
            yield
        finally:
            _opened.now = before

    def _may_change(self, name: str) -> bool:
        return any(
            name == free or name.startswith((f"{free}.", f"{free}[")) for free in self._unguarded
        )

    def difference(self) -> str:
        """Says in words what differs from the capture. The text is empty if nothing does."""
        assert self._watches is not None
        for number in self._watched.changed():
            if text := self._fast[number].difference():
                return text
            self._watched.renew(number)
        for watch in self._watches:
            if text := watch.difference():
                return text
        return ""

    def names(self) -> list[str]:
        """Returns the names of all that is compared before each call."""
        assert self._watches is not None
        watches = [*self._watches, *self._fast.values()]
        return sorted({watch.path + name for watch in watches for name in watch.names})


class _Opened(threading.local):
    """The set that gets the names of the files that this thread opens to read, or None."""

    now: set[str] | None = None


_opened = _Opened()


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or _opened.now is None:
        return
    path, mode = arguments[:2]
    if not isinstance(path, str) or not isinstance(mode, str) or set(mode) & set("wax+"):
        return
    if not path.endswith((".py", ".pyc", ".so")) and not path.startswith(("/proc", "/sys", "/dev")):
        _opened.now.add(os.path.abspath(path))


@functools.cache
def _note_opened_files() -> None:
    """Begins to hear which files are opened. Python has no way to end that."""
    sys.addaudithook(_on_audit)


def _state_of_file(path: str) -> _State:
    try:
        found = os.stat(path)
    except OSError:
        return (" (modified)",), (None,)
    return (" (modified)",), ((found.st_mtime_ns, found.st_size),)


def _matters(before: Any, now: Any) -> bool:
    """Says whether a change within a step is one of Python's state, and not a new object only."""
    return _is_simple(before) or _is_simple(now)
