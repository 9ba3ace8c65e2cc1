"""Bytes of tensors that host code takes by a pointer, in a step that is followed.

The tensors of a followed step have no bytes until its plan has computed them. What reads a number
through an operator of PyTorch (`item()`, a tensor as a condition) gets it in time. NumPy, `print()`
and `tolist()` take a pointer. While a followed step runs, they read a copy that is an operation of
the step (`host_copy`).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import torch

from .._torch import _runtime

_following = threading.local()
_lock = threading.Lock()
_runs = 0
_functions: list[tuple[Any, str, Any]] = []  # of PyTorch, that were replaced: module and name
_patched: dict[str, Any] = {}


def _copied(tensor: torch.Tensor) -> bool:
    """Says whether host code of this thread gets a copy of the tensor."""
    return (
        getattr(_following, "depth", 0) > 0
        and type(tensor) is not torch.nn.Parameter
        and tensor.layout == torch.strided
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _numpy(self: torch.Tensor, *, force: bool = False) -> Any:
    if not _copied(self) or (self.requires_grad and not force):
        return _patched_now("numpy")(self, force=force)
    array = _patched_now("numpy")(_runtime.host_copy(self))
    array.flags.writeable = False  # What is written there would not be in the tensor.
    return array


def _tolist(self: torch.Tensor) -> Any:
    return _patched_now("tolist")(_runtime.host_copy(self) if _copied(self) else self)


def _repr(self: torch.Tensor, *, tensor_contents: Any = None) -> str:
    original = _patched_now("__repr__")
    if not _copied(self) or tensor_contents is not None:
        return str(original(self, tensor_contents=tensor_contents))
    text = str(original(_runtime.host_copy(self)))
    if self.grad_fn is not None:
        return f"{text[:-1]}, grad_fn=<{type(self.grad_fn).__name__}>)"
    return f"{text[:-1]}, requires_grad=True)" if self.requires_grad else text


def _deepcopy(self: torch.Tensor, memo: dict[int, Any]) -> Any:
    if not _copied(self) or not self.is_leaf:
        return _patched_now("__deepcopy__")(self, memo)
    if id(self) not in memo:
        memo[id(self)] = self.detach().clone().requires_grad_(self.requires_grad)
    return memo[id(self)]


_GRAD: Any = torch._C.TensorBase.grad


def _touching(name: str) -> Callable[..., Any]:
    """Returns an accessor of `.grad`. In plain training a gradient from before would be there."""
    access = getattr(_GRAD, name)

    def accessor(*arguments: Any) -> Any:
        if getattr(_following, "depth", 0) > 0:
            _runtime.touch_gradient(arguments[0])
        return access(*arguments)

    return accessor


def _setting(access: Callable[..., Any]) -> Callable[..., Any]:
    """Returns an accessor that takes another gradient for that from before."""

    def accessor(leaf: torch.Tensor, *value: Any) -> Any:
        if getattr(_following, "depth", 0) > 0:
            _following.added_to.discard(id(leaf))
        return access(leaf, *value)

    return accessor


_STATE = ("manual_seed", "seed", "initial_seed")


def _leave(name: str) -> None:
    if getattr(_following, "depth", 0) > 0:
        _runtime.leave_recording(f"the function calls torch.{name}()")


def _leaving(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that reads or sets the random state, which is there in plain training."""

    @functools.wraps(original)
    def function(*arguments: Any, **keywords: Any) -> Any:
        _leave(original.__name__)
        return original(*arguments, **keywords)

    return function


class _Mark(NamedTuple):
    """What a checkpoint gets in place of the random state, to set it again."""

    mark: int


def _in_checkpoint() -> bool:
    """Says whether torch.utils.checkpoint calls the function that calls this one."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") in ("contextlib", "torch.random"):
        frame = frame.f_back
    return frame is not None and frame.f_globals.get("__name__") == "torch.utils.checkpoint"


def _getting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that reads the random state. A checkpoint gets a mark of it."""

    @functools.wraps(original)
    def get_rng_state() -> Any:
        if getattr(_following, "depth", 0) == 0:
            return original()
        mark = _runtime.mark_random_state() if _in_checkpoint() else -1
        if mark < 0:
            _leave("get_rng_state")
            return original()
        return _Mark(mark)

    return get_rng_state


def _setting_state(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that sets the random state, or that of a mark."""

    @functools.wraps(original)
    def set_rng_state(new_state: Any) -> None:
        if isinstance(new_state, _Mark):
            _runtime.return_to_random_state(new_state.mark)
            return
        if getattr(_following, "depth", 0) > 0:
            _leave("set_rng_state")
        original(new_state)

    return set_rng_state


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that runs a backward pass.

    What the plan has computed is added to gradients from before at once. Plain training adds the
    gradients of each pass, which is another sum, so the second pass leaves the plan.
    """

    @functools.wraps(original)
    def function(*arguments: Any, **keywords: Any) -> Any:
        if getattr(_following, "depth", 0) > 0:
            if _following.passes > 0 and _following.added_to:
                _runtime.leave_recording("a second backward pass adds to gradients from before")
            _following.passes += 1
        return original(*arguments, **keywords)

    return function


_REPLACED: dict[str, Any] = {
    "numpy": _numpy,
    "tolist": _tolist,
    "__repr__": _repr,
    "__deepcopy__": _deepcopy,
    "grad": property(
        _touching("__get__"), _setting(_touching("__set__")), _setting(_touching("__delete__"))
    ),
}
_INHERITED = {name: getattr(torch.Tensor, name) for name in _REPLACED if name != "grad"}


def _patched_now(name: str) -> Callable[..., Any]:
    """Returns the function that stands behind ours."""
    found: Callable[..., Any] = _patched.get(name) or _INHERITED[name]
    return found


def _replace(owner: Any, name: str, by: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    _functions.append((owner, name, original))
    setattr(owner, name, by(original))


@contextlib.contextmanager
def host_copies(added_to: Iterable[int] = ()) -> Iterator[None]:
    """While the scope lasts, host code of this thread reads copies of tensors.

    What a followed step has to know of besides is told: gradients from before, random states.

    Args:
        added_to: The ids of leaves with gradients from before.
    """
    global _runs
    with _lock:
        _runs += 1
        if _runs == 1:
            for name, function in _REPLACED.items():
                _patched[name] = torch.Tensor.__dict__.get(name)
                setattr(torch.Tensor, name, function)
            for owner in (torch, torch.random):
                for name in _STATE:
                    _replace(owner, name, _leaving)
                _replace(owner, "get_rng_state", _getting)
                _replace(owner, "set_rng_state", _setting_state)
            _replace(torch.autograd, "backward", _adding)
    _following.depth = getattr(_following, "depth", 0) + 1
    if _following.depth == 1:
        _following.passes, _following.added_to = 0, set(added_to)
    try:
        yield
    finally:
        _following.depth -= 1
        with _lock:
            _runs -= 1
            if _runs == 0:
                for name, before in _patched.items():
                    if before is None:
                        delattr(torch.Tensor, name)
                    else:
                        setattr(torch.Tensor, name, before)
                _patched.clear()
                for owner, name, original in _functions:
                    setattr(owner, name, original)
                _functions.clear()
