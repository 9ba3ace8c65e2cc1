"""One run of a training step on fake tensors, which have sizes and no bytes.

Nothing is computed and nothing is stored, so a model of any size runs on any machine. Each call of
an operator is noted below autograd, with the storages that it reads, makes and writes. So the
notes have the backward, too, and the optimizer's step if it is a part of the run.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from .._compile.joint import storage_bytes
from .._step.library import is_library
from .._step.returned import returned_numbers
from .._step.tree import flatten
from ..errors import InputError

# These calls return views by what they do. Their schemas do not say so.
_VIEWS = (torch.ops.aten._unsafe_view.default, torch.ops.aten._reshape_alias.default)
# These calls get a real tensor, a constant of the program, whose numbers a fake one may know.
_LIFTS = (
    torch.ops.aten.lift.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift_fresh_copy.default,
)
# These write running statistics in training mode. Their schemas do not say so.
_STATISTICS = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::miopen_batch_norm": (3, 4),
}
_BATCH_NORMS = {*_STATISTICS, "aten::_native_batch_norm_legit"}
_ADVICE = (
    "Fake tensors have sizes and no numbers. Leave this out of the step, or let Reprise measure "
    'the step on a device that holds it: times="measured"'
)


@dataclass
class Stored:
    """A storage.

    Attributes:
        bytes: Its size, in whole blocks of its allocator.
        kind: "input", "activation" or "gradient".
        role: The role of an input: "parameter", "buffer", "sample", "gradient", "state" or "other".
    """

    bytes: int
    kind: str
    role: str = ""


@dataclass
class Call:
    """One call of an operator that makes or writes storages.

    Attributes:
        name: The name of the operator, for example "aten.mm".
        phase: "forward", "backward" or "update".
        owner: The path of the module whose forward made the call, or "".
        reads: The storages that it reads, by number.
        makes: The storages that it makes.
        writes: The storages that it writes in place.
        statistics: The inputs among those it writes that are only statistics of a batch norm.
        ns: Its time in nanoseconds.
        random: Whether it draws random numbers.
    """

    name: str
    phase: str
    owner: str
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    writes: tuple[int, ...]
    statistics: tuple[int, ...]
    ns: int
    random: bool


@dataclass
class Run:
    """The notes of a run.

    Attributes:
        calls: The calls in their order.
        storages: All storages that the run has seen, by number.
        kept: The storages that the run made and that live at its end.
        gradients: The number of the gradient's storage for each leaf that has got one, by the
            number of the leaf's storage.
        peak_bytes: The most bytes that live at one time, inputs included, as the program holds
            them.
        leaves: The number of the storage of each leaf that has got a gradient, by the id of the
            leaf.
    """

    calls: list[Call] = field(default_factory=list)
    storages: list[Stored] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    gradients: dict[int, int] = field(default_factory=dict)
    peak_bytes: int = 0
    leaves: dict[int, int] = field(default_factory=dict)

    def input_bytes(self, role: str) -> int:
        """Returns the bytes of all inputs of a role."""
        return sum(s.bytes for s in self.storages if s.kind == "input" and s.role == role)


def new_mode() -> FakeTensorMode:
    """Returns a mode in which new tensors are fake, and in which real ones may be used."""
    return FakeTensorMode(allow_non_fake_inputs=True)


@contextlib.contextmanager
def converting() -> Iterator[None]:
    """While the scope lasts, `module.to()` and the like give a module new parameters.

    PyTorch would put new fake tensors into the old parameters, which fails while anything has a
    weak reference to them. Parameters that two modules share stay shared.
    """
    plain: Any = torch.nn.Module._apply
    shared: dict[int, tuple[Any, Any]] = {}
    depth = 0

    def convert(module: torch.nn.Module, change: Any, recurse: bool = True) -> torch.nn.Module:
        nonlocal depth
        depth += 1
        try:
            own: dict[str, Any] = dict(module._parameters)
            fakes = {key: one for key, one in own.items() if isinstance(one, FakeTensor)}
            for key, one in fakes.items():
                if id(one) not in shared:
                    with torch.no_grad():
                        new = torch.nn.Parameter(change(one), one.requires_grad)
                    shared[id(one)] = (one, new)
                own[key] = shared[id(one)][1]
                module._parameters[key] = None
            done: torch.nn.Module = plain(module, change, recurse)
            module._parameters.update(own)
            return done
        finally:
            depth -= 1
            if depth == 0:
                shared.clear()

    torch.nn.Module._apply = convert  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module._apply = plain  # type: ignore[method-assign]


def mode_of(tensors: list[torch.Tensor]) -> FakeTensorMode:
    """Returns the mode that made the fake tensors among these, or a new one."""
    for one in tensors:
        if isinstance(one, FakeTensor):
            found: FakeTensorMode = one.fake_mode
            return found
    return new_mode()


def record(
    step: Callable[[], Any],
    roles: dict[str, list[torch.Tensor]],
    modules: list[torch.nn.Module],
    cost: Callable[[Any, Any, Any, Any], int],
    mode: FakeTensorMode,
) -> Run:
    """Runs a step on fake tensors.

    Args:
        step: The step, with its arguments bound.
        roles: The tensors that are there before the step, by their role.
        modules: The modules whose paths are the owners of calls.
        cost: The time of a call in nanoseconds, from the operator, its arguments, its keyword
            arguments and its result.
        mode: The mode of the fake tensors among all these.

    Raises:
        InputError: The step reads a number out of a tensor, or uses an operator whose results have
            no known sizes.
    """
    notes = _Notes(mode, cost)
    for role, tensors in roles.items():
        for one in tensors:
            notes.input(one, role)
    leaves = [one for tensors in roles.values() for one in tensors if one.is_leaf]
    leaves = [one for one in leaves if one.requires_grad]
    with _owners(modules, notes), _explained(), mode, notes, returned_numbers() as reads:
        try:
            returned, _ = flatten(step(), "what the step returns")
        except TypeError as error:
            reads.explain(error)
            raise
        reads.settle()
    return notes.end(leaves, returned)


class _Notes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes all calls while it is the innermost mode."""

    def __init__(self, mode: FakeTensorMode, cost: Callable[[Any, Any, Any, Any], int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.run = Run()
        self.owner = ""
        self._mode = mode
        self._cost = cost
        self._numbers: dict[int, int] = {}  # of a storage, by its address
        self._references: list[StorageWeakRef] = []  # They keep the address of a storage taken.
        self._live: dict[int, StorageWeakRef] = {}  # the storages that the run made, by number
        self._live_bytes = 0
        self._fakes: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def input(self, tensor: torch.Tensor, role: str) -> int:
        """Notes a tensor that is there before the step, and returns the number of its storage."""
        fake = self._fake(tensor)
        known = self._numbers.get(_address(fake))
        if known is not None:
            return known
        self._live_bytes += storage_bytes(fake)
        self.run.peak_bytes = max(self.run.peak_bytes, self._live_bytes)
        return self._new(fake, Stored(storage_bytes(fake), "input", role))

    def end(self, leaves: list[torch.Tensor], returned: Any) -> Run:
        """Returns the notes. The results of the step are still alive."""
        run = self.run
        self._drop_dead()
        for leaf in leaves:
            if isinstance(leaf.grad, torch.Tensor):
                number = self.input(leaf, "other")
                run.leaves[id(leaf)] = number
                run.gradients[number] = self.input(leaf.grad, "gradient")
        run.kept = sorted(self._live)
        del returned
        return run

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload) or func.namespace in ("prim", "profiler"):
            return func(*args, **(kwargs or {}))
        kwargs = kwargs or {}
        if func not in _LIFTS:
            args, kwargs = tree_map_only(torch.Tensor, self._fake, (args, kwargs))
        result = func(*args, **kwargs)
        self._note(func, args, kwargs, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        found = () if func in _LIFTS else tree_leaves((args, kwargs))
        operands = [one for one in found if isinstance(one, torch.Tensor)]
        reads = tuple(dict.fromkeys(self.input(one, "other") for one in operands))
        backward = torch._C._current_autograd_node() is not None
        makes = self._made(func, operands, result, "gradient" if backward else "activation")
        writes, statistics = self._written(func, args, kwargs)
        if not makes and not writes and not statistics:
            return  # a view, or a question about a tensor
        self.run.calls.append(
            Call(
                name=str(func.overloadpacket),
                phase="backward" if backward else "forward",
                owner="" if backward else self.owner,
                reads=reads,
                makes=makes,
                writes=writes,
                statistics=statistics,
                ns=self._cost(func, args, kwargs, result),
                random=_is_random(func, args, kwargs),
            )
        )

    def _made(
        self, func: Any, operands: list[torch.Tensor], result: Any, kind: str
    ) -> tuple[int, ...]:
        """Returns the storages that a call has made. A view has the storage of its operand."""
        made: list[int] = []
        for one in tree_leaves(result):
            if not isinstance(one, torch.Tensor) or _address(one) in self._numbers:
                continue
            if operands and (func.is_view or func in _VIEWS):
                self._numbers[_address(one)] = self._numbers[_address(operands[0])]
                self._references.append(_weak(one))
                continue
            if not made:
                self._drop_dead()
            number = self._new(one, Stored(storage_bytes(one), kind))
            self._live[number] = self._references[-1]
            self._live_bytes += self.run.storages[number].bytes
            made.append(number)
        self.run.peak_bytes = max(self.run.peak_bytes, self._live_bytes)
        return tuple(made)

    def _written(
        self, func: Any, args: Any, kwargs: Any
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Returns the storages that a call writes in place, and those that are statistics."""
        schema = func._schema
        found = []
        for index, argument in enumerate(schema.arguments):
            value = args[index] if index < len(args) else kwargs.get(argument.name)
            if argument.alias_info is not None and argument.alias_info.is_write:
                found += [one for one in tree_leaves(value) if isinstance(one, torch.Tensor)]
        if schema.name in _STATISTICS and args[5]:
            found += [args[place] for place in _STATISTICS[schema.name] if args[place] is not None]
        numbers = tuple(dict.fromkeys(self.input(one, "other") for one in found))
        return ((), numbers) if schema.name in _BATCH_NORMS else (numbers, ())

    def _new(self, tensor: torch.Tensor, stored: Stored) -> int:
        self.run.storages.append(stored)
        self._references.append(_weak(tensor))
        number = len(self.run.storages) - 1
        self._numbers[_address(tensor)] = number
        return number

    def _drop_dead(self) -> None:
        """Takes the storages that the program has let go out of the count."""
        expired = torch.UntypedStorage._expired
        for number in [n for n, reference in self._live.items() if expired(reference.cdata)]:
            del self._live[number]
            self._live_bytes -= self.run.storages[number].bytes

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the fake tensor that stands for a tensor."""
        if isinstance(tensor, FakeTensor):
            if tensor.fake_mode is not self._mode:
                raise InputError(
                    "the step has fake tensors of two scopes; make the model, the optimizer and "
                    "the sample inside the same `with reprise.fake_tensors():`"
                )
            return tensor
        known = self._fakes.get(id(tensor))
        if known is None:
            if tensor.device.type == "meta":
                raise InputError(
                    'the step has a tensor on the device "meta", where autograd does not know the '
                    "device of its gradient; make the model in the scope "
                    "`with reprise.fake_tensors():` instead, which takes no memory either"
                )
            known = (tensor, self._mode.from_tensor(tensor))
            self._fakes[id(tensor)] = known  # The tensor stays alive, so that its id stays its own.
        return known[1]


def _weak(tensor: torch.Tensor) -> StorageWeakRef:
    make: Any = StorageWeakRef
    reference: StorageWeakRef = make(tensor.untyped_storage())
    return reference


def _address(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError) as error:
        raise InputError(
            f"the step has a tensor without a storage ({tensor.layout}); its bytes are not known. "
            'Let Reprise measure the step instead: times="measured"'
        ) from error


def _is_random(func: Any, args: Any, kwargs: Any) -> bool:
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    if not func._schema.name.startswith("aten::_scaled_dot_product_"):
        return True
    for argument, value in zip(func._schema.arguments, args, strict=False):
        if argument.name == "dropout_p":
            return bool(value != 0.0)
    return bool(kwargs.get("dropout_p", 0.0) != 0.0)


@contextlib.contextmanager
def _owners(modules: list[torch.nn.Module], notes: _Notes) -> Iterator[None]:
    """While the scope lasts, the notes know which module's forward runs."""
    paths = {id(part): path for module in modules for path, part in module.named_modules()}
    stack: list[str] = []
    own = weakref.ref(notes)

    def enter(module: torch.nn.Module, _inputs: Any) -> None:
        stack.append(paths.get(id(module), stack[-1] if stack else ""))
        show()

    def leave(_module: torch.nn.Module, _inputs: Any, _output: Any) -> None:
        if stack:
            stack.pop()
        show()

    def show() -> None:
        found = own()
        if found is not None:
            found.owner = stack[-1] if stack else ""

    before = torch.nn.modules.module.register_module_forward_pre_hook(enter)
    after = torch.nn.modules.module.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turns what fake tensors cannot do into InputError with the place in the program."""
    try:
        yield
    except DataDependentOutputException as error:
        what = f"reads a number out of a tensor ({error.func})"
        raise InputError(f"the step {what} at {_place(error)}. {_ADVICE}") from error
    except DynamicOutputShapeException as error:
        what = f"makes a tensor whose size depends on numbers ({error.func})"
        raise InputError(f"the step {what} at {_place(error)}. {_ADVICE}") from error
    except UnsupportedOperatorException as error:
        what = f"uses an operator that does not know the sizes of its results ({error.func})"
        advice = "Register a fake kernel for it (torch.library.register_fake). "
        raise InputError(f"the step {what} at {_place(error)}. {advice}{_ADVICE}") from error
    except UnsupportedFakeTensorException as error:
        raise InputError(f"the step fails at {_place(error)}: {error}. {_ADVICE}") from error
    except RuntimeError as error:
        if "fake impl" not in str(error):
            raise  # It is the step's own.
        raise InputError(f"the step fails at {_place(error)}: {error} {_ADVICE}") from error


def _place(error: BaseException) -> str:
    """Returns the last line of the user's program in a traceback, as "train.py:41"."""
    found = "an unknown place"
    trace = error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not is_library(file) and file != __file__:
            found = f"{file.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
