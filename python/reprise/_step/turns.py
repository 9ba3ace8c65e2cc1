"""One caller at a time: calls of several threads to one object take turns."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from ..errors import InputError

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class Turns:
    """A lock that one thread holds at a time, as often as it likes.

    A thread that waits holds nothing of Python, so that the other one goes on. A copy of an object
    has turns of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_error: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()


class OfThisProcess:
    """The base class of objects that are neither copied nor pickled."""

    def __reduce_ex__(self, _protocol: Any) -> Any:
        raise InputError(
            f"a {type(self).__name__} stands for tensors of this process, so it is neither copied "
            "nor pickled: copy the model and the optimizer, and make it anew from them "
            "(reprise.save_state() keeps a training)"
        )


class _TakesTurns(Protocol):
    _turns: Turns


_Self = TypeVar("_Self", bound=_TakesTurns)


def in_turn(
    method: Callable[Concatenate[_Self, _Arguments], _Result],
) -> Callable[Concatenate[_Self, _Arguments], _Result]:
    """Makes calls of a method wait while another thread is in a method of the same object."""

    @functools.wraps(method)
    def taking_its_turn(
        self: _Self, *arguments: _Arguments.args, **keywords: _Arguments.kwargs
    ) -> _Result:
        with self._turns:
            return method(self, *arguments, **keywords)

    return cast(Callable[Concatenate[_Self, _Arguments], _Result], taking_its_turn)
