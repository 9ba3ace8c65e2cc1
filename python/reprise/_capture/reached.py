"""Everything that a function can reach and that its code names, as watches."""

from __future__ import annotations

import contextvars
import dis
import functools
import random
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from .._step.library import file_of, is_installed, is_library
from .._step.places import place_in, place_of
from .._step.tree import SIMPLE, is_simple
from ..errors import Error, InputError
from .watch import MISSING, WHOLE, Sources, State, Watch, all_simple

# A container with more items is watched by its length only.
LARGEST_CONTAINER = 1024
# A list with more items is watched by its length only, though all of them are numbers or texts.
LARGEST_SIMPLE = 65536
# An array of NumPy, or a bytearray, with more bytes is not watched.
LARGEST_ARRAY = 1 << 20
# Names by which code reads attributes whose names it computes.
BY_NAME = {"getattr", "vars", "__dict__", "attrgetter"}
HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
HOOKS_OF_ALL = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
    "_global_backward_pre_hooks",
)  # fmt: skip
# Kinds of state that is compared, as people read them.
FUNCTION = "the function"
ATTRIBUTES = "attributes"
CONTAINERS = "containers"
MODULES = "modules and parameters"
LIBRARIES = "functions of libraries"  # There are many, so people read the library's name alone.
OF_TENSORS = ("_parameters", "_buffers", "_modules")


class Walk:
    """Makes the watches of all that a function shows."""

    def __init__(self, names: set[str]) -> None:
        self.known = names  # The names in the code that an earlier walk has met.
        self.names: set[str] = set()
        self.watches: list[Watch] = []
        self.generators: list[tuple[str, Callable[[], Any]]] = []
        self.unwatched: list[str] = []  # State that is met and not compared, in words.
        self._seen: dict[int, Any] = {}
        self._kinds: set[type] = set()  # of modules
        self._in_module = False
        self._kinds_seen: set[type] = set()
        self._libraries: set[int] = set()  # whose functions are watched

    def visit(self, value: Any, path: str) -> None:
        """Watches a value and all values that can be reached from it."""
        if issubclass(type(value), (*SIMPLE, types.BuiltinFunctionType)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value  # The value stays alive, so that its id stays its own.
        try:
            self._visit(value, path)
        except Error:
            raise
        except Exception as error:  # The object answers what it is asked in a way of its own.
            text = f"{type(error).__name__}: {error}"
            self.unwatched.append(f"{path}: an object that cannot be looked at ({text})")

    def _visit(self, value: Any, path: str) -> None:
        if type(value) in (weakref.ref, *weakref.ProxyTypes):
            self._weak(value, path)
        elif isinstance(value, torch.Tensor):
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
            self._watch(FUNCTION, f"{path}.func", lambda: (("",), (value.func,)))
            for part in ("func", "args", "keywords"):
                self.visit(getattr(value, part), f"{path}.{part}")
        elif isinstance(value, Mapping):
            self._mapping(value, path)
        elif type(value) is tuple:
            for i, item in enumerate(value):  # Nothing but its items can change.
                self.visit(item, f"{path}[{i}]")
        elif isinstance(value, (list, tuple, deque)):
            self._sequence(value, path)
        elif isinstance(value, bytearray):
            self._bytes(path, len(value), lambda: bytes(value))
        elif isinstance(value, (set, frozenset)):
            if not all_simple(value):
                self.unwatched.append(
                    f"{path}: {len(value):,} items, of which the number is compared"
                )
            self._watch(CONTAINERS, path, lambda: _members(value))
        elif isinstance(value, types.ModuleType):
            self._python_module(value, path)
        elif type(value).__module__ == "numpy" and hasattr(value, "tobytes"):
            self._array(value, path)
        elif isinstance(value, contextvars.ContextVar):
            self._watch(ATTRIBUTES, path, lambda: (("",), (value.get(None),)))
        elif not self._generator(value, path):
            self._object(value, path)

    def _watch(
        self, kind: str, path: str, read: Callable[[], State], sources: Sources | None = None
    ) -> None:
        watch = Watch(path, read, kind, sources)
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
        if not is_installed(code.co_filename):
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
            self._watch(
                FUNCTION, "", lambda: (names, tuple(table.get(name, MISSING) for name in names))
            )
            for module in _imported_by(function):
                self.visit(module, module.__name__)
            self._watch(FUNCTION, path, lambda: ((".__code__",), (function.__code__,)))
            self._watch(FUNCTION, path, lambda: _defaults(function))
        cells = function.__closure__ or ()
        if cells:
            self._watch(FUNCTION, "", lambda: (code.co_freevars, tuple(map(_contents, cells))))

    def _by_length(self, value: Any, path: str) -> None:
        self.unwatched.append(f"{path}: {len(value):,} items, of which the number is compared")
        self._watch(CONTAINERS, path, lambda: ((".__len__()",), (len(value),)))

    def _mapping(self, value: Mapping[Any, Any], path: str) -> None:
        if len(value) > LARGEST_CONTAINER:
            self._by_length(value, path)
        else:
            self._watch(
                CONTAINERS,
                path,
                lambda: (tuple(f"[{key!r}]" for key in value), tuple(value.values())),
                ([value], [], []) if type(value) is dict else None,
            )

    def _sequence(self, value: Any, path: str) -> None:
        if len(value) <= LARGEST_CONTAINER:
            self._watch(CONTAINERS, path, lambda: (_positions(len(value)), tuple(value)))
        elif len(value) <= LARGEST_SIMPLE and all_simple(value):
            self._watch(CONTAINERS, path, lambda: ((WHOLE,), (tuple(value),)))
        else:
            self._by_length(value, path)
        if hasattr(value, "_fields") or type(value) not in (list, tuple, deque):
            self._object(value, path)

    def _optimizer(self, value: torch.optim.Optimizer, path: str) -> None:
        """Watches only what the code names, because schedules change hyperparameters elsewhere."""
        for i, group in enumerate(value.param_groups):
            keys = tuple(k for k in group if k in self.known and k != "params")
            self._watch(
                ATTRIBUTES,
                f"{path}.param_groups[{i}]",
                functools.partial(_entries, group, keys),
            )  # fmt: skip

    def _tensor(self, value: torch.Tensor, path: str) -> None:
        if not value.is_leaf:
            return  # A result of an earlier operation has no state of its own.
        own = value.__dict__
        read = functools.partial(_of_tensor, value, self.known)
        self._watch(MODULES, path, read, ([own], [], [value]))

    def _module(self, module: torch.nn.Module, path: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise InputError(
                f"the step cannot be captured: {path} is a module of torch.jit.script, whose code "
                "Python does not see. Capture the step with the module that it was made of, or run "
                "it in online mode"
            )
        own = module.__dict__
        tables = [own[name] for name in OF_TENSORS if name in own]
        hooks = [own[name] for name in HOOKS if name in own]

        def read() -> State:
            named = {f".{name}": value for name, value in own.items() if not _is_record(name)}
            for table in tables:
                named.update((f".{name}", item) for name, item in table.items())
            for name in HOOKS:
                of_kind = enumerate(own.get(name, {}).values())
                named.update((f".{name}[{i}]", hook) for i, hook in of_kind)
            named[".__class__"] = type(module)
            return tuple(named), tuple(named.values())

        outside, self._in_module = self._in_module, True
        self._watch(MODULES, path, read, ([own, *tables, *hooks], [module], []))
        self._in_module = outside
        kind = type(module)
        if kind not in self._kinds:
            self._kinds.add(kind)
            self._watch(MODULES, kind.__qualname__, lambda: ((".forward",), (kind.forward,)))
            self._class(kind, path)
            self._functions_of(torch.nn.functional)
            for base in kind.__mro__:
                library = sys.modules.get(base.__module__)
                if base is not object and library is not None and is_installed(file_of(base)):
                    self._functions_of(library)

    def _functions_of(self, library: types.ModuleType) -> None:
        """Watches the functions that a library's modules call: a program may replace them."""
        if id(library) in self._libraries:
            return
        self._libraries.add(id(library))
        table = vars(library)
        kinds = (types.FunctionType, types.BuiltinFunctionType)
        names = tuple(name for name, item in table.items() if isinstance(item, kinds))
        labels = tuple(f".{name}" for name in names)

        def read() -> State:
            return labels, tuple(table.get(name, MISSING) for name in names)

        self.watches.append(Watch(library.__name__, read, LIBRARIES, ([table], [], [])))

    def _class(self, kind: type, path: str) -> None:
        """Watches the attributes of a user's class that the code names."""
        for base in kind.__mro__:
            if base is object or base in self._kinds_seen or is_installed(file_of(base)):
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
        if meta is not type and not is_installed(file_of(meta)) and id(meta) not in self._seen:
            self._seen[id(meta)] = meta
            self._class(meta, path)

    def _attributes(self, value: Any, path: str) -> None:
        """Watches the attributes that the code names, those that come later included."""
        known = self.known
        # The code may read attributes by names that it computes, and the code of an installed
        # library, whose names are not known, reads those of objects in its modules.
        every = bool(known & BY_NAME) or (
            self._in_module and is_installed(file_of(type(value))) and not isinstance(value, type)
        )

        def read() -> State:
            own = vars(value)
            names = [name for name in own if (name in known or every) and not name.startswith("__")]
            return tuple(f".{name}" for name in names), tuple(own[name] for name in names)

        self._watch(ATTRIBUTES, path, read)

    def _generator(self, value: Any, path: str) -> bool:
        """Notes a source that gives something else each time. Returns whether the value is one."""
        if isinstance(value, random.Random):
            self.generators.append((path, value.getstate))
        elif type(value).__module__.startswith("numpy.random") and hasattr(value, "bit_generator"):
            self.generators.append((path, lambda: repr(value.bit_generator.state)))
        elif isinstance(value, types.GeneratorType):
            self.generators.append((path, lambda: place_of(value)))
        elif hasattr(type(value), "__next__") and hasattr(type(value), "__iter__"):
            self.generators.append((path, lambda: place_in(value)))
        else:
            return False
        return True

    def _python_module(self, value: types.ModuleType, path: str) -> None:
        root = value.__name__.partition(".")[0]
        file = getattr(value, "__file__", None)
        if root not in sys.stdlib_module_names and (file is None or not is_installed(file)):
            self._attributes(value, path)
            return
        # A library stays as it is, but for a function of it that the program replaces.
        own = vars(value)
        names = tuple(name for name in own if name in self.known)
        labels = tuple(f".{name}" for name in names)
        self.watches.append(
            Watch(
                path, lambda: (labels, tuple(own.get(name, MISSING) for name in names)), ATTRIBUTES
            )
        )

    def _array(self, value: Any, path: str) -> None:
        """Watches the content of a small array, from which the step may take numbers."""
        if value.dtype.hasobject:
            self.unwatched.append(f"{path}: an array of objects")
        else:
            self._bytes(path, value.nbytes, value.tobytes)

    def _bytes(self, path: str, size: int, content: Callable[[], bytes]) -> None:
        if size > LARGEST_ARRAY:
            self.unwatched.append(f"{path}: an array of {size:,} bytes")
        else:
            self._watch(CONTAINERS, path, lambda: ((" (content)",), (content(),)))

    def _weak(self, value: Any, path: str) -> None:
        """Watches the attributes of an object behind a weak reference, and does not hold it."""
        known = self.known

        def read() -> State:
            try:
                target = value() if type(value) is weakref.ref else value
                own = {} if target is None else target.__dict__
            except (ReferenceError, AttributeError):  # The object is gone, or it has no attributes.
                own = {}
            names = [name for name in own if name in known]
            simple = [own[name] if is_simple(own[name]) else id(own[name]) for name in names]
            return tuple(f".{name}" for name in names), tuple(simple)

        self._watch(ATTRIBUTES, path, read)

    def _object(self, value: Any, path: str) -> None:
        if isinstance(value, type):
            if not is_library(file_of(value)):
                self._class(value, path)
            return
        kind = type(value)
        if isinstance(value, threading.local) or hasattr(value, "__dict__"):
            if is_library(file_of(kind)) and not isinstance(
                value, (threading.local, types.SimpleNamespace)
            ):
                self.unwatched.append(f"{path}: an object of the library class {name_of(kind)}")
                return
            self._attributes(value, path)
        slots = tuple(
            name
            for base in kind.__mro__
            for name in _as_tuple(getattr(base, "__slots__", ()))
            if name in self.known
        )
        if slots and not is_library(file_of(kind)):
            labels = tuple(f".{name}" for name in slots)
            self._watch(
                ATTRIBUTES,
                path,
                lambda: (labels, tuple(getattr(value, name, MISSING) for name in slots)),
            )
        if not is_library(file_of(kind)):
            self._class(kind, path)


def _imported_by(function: types.FunctionType) -> list[types.ModuleType]:
    """Returns the modules that a function imports when it runs, as far as they are loaded."""
    found = []
    for part in _codes(function.__code__):
        constants: list[Any] = []  # of the two instructions before: the level, and the names
        for instruction in dis.get_instructions(part):
            if instruction.opname == "IMPORT_NAME":
                name, level = instruction.argval, constants[-2] if len(constants) > 1 else 0
                if level:
                    package = function.__globals__.get("__package__") or ""
                    name = ".".join([*package.split(".")[: -level + 1 or None], name]).strip(".")
                if (module := sys.modules.get(name)) is not None:
                    found.append(module)
            elif instruction.opname == "LOAD_CONST":
                constants.append(instruction.argval)
    return found


def name_of(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _codes(code: types.CodeType) -> Iterable[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


@functools.cache
def _positions(length: int) -> tuple[str, ...]:
    return tuple(f"[{i}]" for i in range(length))


def _as_tuple(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The cell is not filled yet.
        return MISSING


def _of_tensor(tensor: torch.Tensor, known: set[str]) -> State:
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


def _entries(table: dict[str, Any], keys: tuple[str, ...]) -> State:
    return tuple(f"[{key!r}]" for key in keys), tuple(table.get(key, MISSING) for key in keys)


def _defaults(function: types.FunctionType) -> State:
    code, defaults = function.__code__, function.__defaults__ or ()
    arguments = code.co_varnames[: code.co_argcount]
    keywords = function.__kwdefaults__ or {}
    names = (*arguments[len(arguments) - len(defaults) :], *keywords)
    return tuple(f"({name}=)" for name in names), (*defaults, *keywords.values())


def _members(value: Any) -> State:
    if all_simple(value):
        return ("",), (frozenset(value),)
    return (".__len__()",), (len(value),)


def hooks_of_all_modules() -> State:
    of_all = torch.nn.modules.module
    hooks = [
        (name, i, hook)
        for name in HOOKS_OF_ALL
        for i, hook in enumerate(getattr(of_all, name, {}).values())
        if not is_library(getattr(getattr(hook, "__code__", None), "co_filename", "?"))
    ]
    return tuple(f".{name}[{i}]" for name, i, _ in hooks), tuple(hook for _, _, hook in hooks)
