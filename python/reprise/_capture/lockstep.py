"""The function of a captured step beside its recording: what Python adds to the runtime's look."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from .._step.library import OUR_CODE
from .._step.tree import Tree
from .._torch import _runtime
from ..errors import Error, InputError, StepMiss
from .chance import put_back, shared_generators
from .watch import text_of

LOCKSTEP = ("sparse", "always", "never")
_NOTE = (
    "Reprise ran the function of a captured step beside its recording (lockstep) when this was "
    "raised. The step has changed nothing."
)


def check_lockstep(lockstep: str) -> None:
    """Raises InputError for a text that is no way to compare a step."""
    if lockstep not in LOCKSTEP:
        raise InputError(f'lockstep is "sparse", "always" or "never", not {lockstep!r}')


@contextlib.contextmanager
def beside_recording() -> Iterator[None]:
    """A scope in which the function runs beside its recording.

    The generators that Python and NumPy share are afterwards as before.

    Raises:
        InputError: The function takes the bytes of a tensor, which has none here.
        StepMiss: The function draws from a generator of Python or NumPy.
    """
    numpy = sys.modules.get("numpy")
    states = random.getstate(), None if numpy is None else numpy.random.get_state()
    before = shared_generators()
    try:
        yield
    except Error:
        raise
    except RuntimeError as error:
        if _runtime.no_bytes() not in str(error):
            _add_note(error)
            raise
        raise InputError(
            f"the step looks into the bytes of a tensor{_place_of(error)}, by NumPy for example, "
            "which a captured step does not do again: compute with the tensor itself, or read a "
            "boolean or a whole number by item(). If what is read has no effect on the step, "
            'capture it with lockstep="never"'
        ) from error
    except Exception as error:
        _add_note(error)
        raise
    finally:
        drawn = [name for name, state in shared_generators().items() if state != before.get(name)]
        put_back(*states)
    if drawn:
        raise StepMiss(
            f"the step was captured for something else: the function takes something from "
            f"{drawn[0]} now, and the recording does not",
            of_function=True,
        )


def _add_note(error: BaseException) -> None:
    """Says in the traceback when the error was raised. Python 3.10 has no notes."""
    if sys.version_info >= (3, 11):
        error.add_note(_NOTE)


def _place_of(error: BaseException) -> str:
    """Returns where the program raised the error, such as " at train.py:41"."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(OUR_CODE):
            return f" at {os.path.basename(frame.filename)}:{frame.lineno}"
    return ""


def compare_structures(recorded: Tree, now: Tree) -> None:
    """Raises StepMiss if the function returns another structure or other numbers."""
    if recorded == now:
        return
    path, was, found = _first_difference(recorded, now, "")
    raise StepMiss(
        f"the step was captured for something else: the function returns {found} as "
        f"{f'result{path}' if path else 'its result'}, and the recording has {was}",
        of_function=True,
    )


def _first_difference(a: Tree, b: Tree, path: str) -> tuple[str, str, str]:
    if a.kind is b.kind and a.keys == b.keys and len(a.children) == len(b.children) > 0:
        for key, x, y in zip(a.keys, a.children, b.children, strict=True):
            if x != y:
                return _first_difference(x, y, f"{path}[{key!r}]")
    return path, _text(a), _text(b)


def _text(tree: Tree) -> str:
    if tree.is_number:
        return "a number out of a tensor"
    if tree.kind is None:
        value: Any = tree.constant
        return "a tensor" if value is None else text_of(value[1])
    return f"a {tree.kind.__name__} of {len(tree.children)}"
