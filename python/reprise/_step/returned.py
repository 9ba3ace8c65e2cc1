"""Numbers that a step reads out of tensors only to return them, such as `loss.item()`.

A number that is not whole is hardly ever the same twice, so a captured step must not depend on it.
While a step is recorded, `item()` gives such a number as a `ReturnedNumber`, which refuses whatever
would use its value. If the step returns it, and keeps it nowhere, the step does not depend on it:
its tensor becomes a result of the step, and each call reads the number from the new result.

When the run is over, a `ReturnedNumber` that the program still holds is a number like any other.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..errors import InputError
from .library import OUR_CODE

# tolist() of more whole numbers than these is refused, because each is a read of its own.
MOST_NUMBERS = 64
_ADVICE = (
    "it is hardly ever the same twice, and a captured step would keep it. Compare inside PyTorch, "
    "because a boolean can be read (if loss > 3:), compute with the tensor itself, return the "
    "number and use it behind the step, or leave the step alone with it"
)
_USES = (
    "__abs__", "__add__", "__bool__", "__ceil__", "__divmod__", "__eq__", "__float__",
    "__floor__", "__floordiv__", "__format__", "__ge__", "__gt__", "__hash__", "__int__", "__le__",
    "__lt__",
    "__mod__", "__mul__", "__ne__", "__neg__", "__pos__", "__pow__", "__radd__", "__rdivmod__",
    "__reduce_ex__", "__repr__", "__rfloordiv__", "__rmod__", "__rmul__", "__round__", "__rpow__",
    "__rsub__", "__rtruediv__", "__str__", "__sub__", "__truediv__", "__trunc__",
)  # fmt: skip


class ReturnedNumber:
    """A number that may be handed on and returned, and that nothing may look at during the run.

    Attributes:
        tensor: A tensor with the number, as it was when it was read.
        place: Where the program read it, such as "train.py:41".
    """

    __slots__ = ("__weakref__", "_reads", "place", "tensor")

    def __init__(self, tensor: torch.Tensor, place: str, reads: Reads) -> None:
        self.tensor = tensor
        self.place = place
        self._reads = reads

    @property  # type: ignore[misc] # isinstance(number, float) is true, as in plain training.
    def __class__(self) -> type:
        return float

    def __getattr__(self, name: str) -> Any:
        return getattr(self.number(), name)

    def number(self) -> float:
        """Returns the number. Raises InputError while the run is under way."""
        if not self._reads.over:
            raise self._reads.refuse(self.place)
        return float(_ITEM(self.tensor))

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        import numpy

        return numpy.asarray(self.number(), *arguments, **keywords)


# These two stay PyTorch's own while those of torch.Tensor are replaced.
_ITEM: Callable[[torch.Tensor], Any] = torch._C.TensorBase.item
_TOLIST: Callable[[torch.Tensor], Any] = torch._C.TensorBase.tolist


def _use(name: str) -> Callable[..., Any]:
    def use(number: ReturnedNumber, *arguments: Any) -> Any:
        value = number.number()
        others = [a.number() if type(a) is ReturnedNumber else a for a in arguments]
        return getattr(value, name)(*others)

    return use


for _name in _USES:
    setattr(ReturnedNumber, _name, _use(_name))


class Reads:
    """The numbers that one run of a step has read.

    Attributes:
        over: Whether the run is over, so that the numbers may be used.
    """

    def __init__(self) -> None:
        self.over = False
        self._numbers: list[tuple[weakref.ref[ReturnedNumber], str]] = []
        self._refused: InputError | None = None

    def add(self, tensor: torch.Tensor) -> ReturnedNumber:
        """Returns the number in a tensor of one element."""
        number = ReturnedNumber(tensor.detach().clone(), place(), self)
        self._numbers.append((weakref.ref(number), number.place))
        return number

    def refuse(self, place: str) -> InputError:
        """Returns the exception for a number that is used. It is raised behind the run, too."""
        self._refused = self._refused or InputError(
            f"the step cannot be captured: it uses the number that item() or tolist() reads at "
            f"{place}, which is not whole: {_ADVICE}"
        )
        return self._refused

    def explain(self, error: TypeError) -> None:
        """Raises InputError for an error that one of the numbers may have caused."""
        alive = [place for number, place in self._numbers if number() is not None]
        if alive:
            raise self.refuse(alive[-1]) from error

    def settle(self) -> None:
        """Ends the run, whose result was taken apart and is gone.

        Raises:
            InputError: A number was used, or the program still holds one.
        """
        if self._refused is not None:
            raise self._refused
        if any(number() is not None for number, _ in self._numbers):
            gc.collect()
        for number, place in self._numbers:
            if number() is not None:
                raise InputError(
                    f"the step cannot be captured: it keeps the number that item() or tolist() "
                    f"reads at {place}, in an attribute or a list for example, which a captured "
                    "step does not do again. Return the number, and keep it behind the step"
                )


def place() -> str:
    """Returns the line of the user's program that is running, such as "train.py:41"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OUR_CODE):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"


def _nested(flat: list[Any], sizes: tuple[int, ...]) -> Any:
    if not sizes:
        return flat[0]
    inner = len(flat) // sizes[0] if sizes[0] else 0
    return [_nested(flat[i * inner : (i + 1) * inner], sizes[1:]) for i in range(sizes[0])]


# The runs under way, by thread, from the outermost one. While there are some, item() and tolist()
# of torch.Tensor are those below. The functions of PyTorch come back when the last run is over, on
# whatever thread.
_runs: dict[int, list[Reads]] = {}
_patched: dict[str, Any] = {}  # what torch.Tensor itself had under these names
_lock = threading.Lock()


def _read_item(self: torch.Tensor) -> Any:
    runs = _runs.get(threading.get_ident())
    if not runs or not self.is_floating_point() or self.numel() != 1:
        return _ITEM(self)
    if getattr(self, "constant", None) is not None:
        return _ITEM(self)  # A fake tensor whose number is known, as that of a step count.
    return runs[-1].add(self)


def _read_list(self: torch.Tensor) -> Any:
    if threading.get_ident() not in _runs or self.layout != torch.strided:
        return _TOLIST(self)
    if self.numel() > MOST_NUMBERS:
        raise InputError(
            f"the step cannot be captured: it reads {self.numel()} numbers by tolist() at "
            f"{place()}, and it can be captured with at most {MOST_NUMBERS}. Read them before "
            "the step, or compute with the tensor itself"
        )
    flat = [_read_item(one) for one in self.detach().reshape(-1).unbind()]
    return _nested(flat, tuple(self.shape))


@contextlib.contextmanager
def returned_numbers() -> Iterator[Reads]:
    """While the scope lasts, `item()` and `tolist()` of this thread note what they read.

    Numbers that are not whole are given as `ReturnedNumber`. Whole numbers and booleans are read
    one by one, which the runtime notes.
    """
    owner = threading.get_ident()
    reads = Reads()
    with _lock:
        if not _runs:
            for name, function in (("item", _read_item), ("tolist", _read_list)):
                _patched[name] = torch.Tensor.__dict__.get(name)
                setattr(torch.Tensor, name, function)
        _runs.setdefault(owner, []).append(reads)
    try:
        yield reads
    finally:
        reads.over = True
        with _lock:
            _runs[owner].pop()
            if not _runs[owner]:
                del _runs[owner]
            if not _runs:
                for name, before in _patched.items():
                    if before is None:
                        delattr(torch.Tensor, name)
                    else:
                        setattr(torch.Tensor, name, before)
