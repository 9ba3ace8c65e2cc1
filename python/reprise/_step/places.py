"""How far generators and iterators are."""

from __future__ import annotations

import io
import types
from typing import Any

from .tree import is_simple


def place_of(generator: types.GeneratorType[Any, Any, Any]) -> Any:
    """Returns how far a generator is. Two equal answers mean that it was not advanced."""
    frame = generator.gi_frame
    return None if frame is None else (frame.f_lasti, token_of(frame.f_locals))


def place_in(iterator: Any) -> Any:
    """Returns how far an iterator is, or None for an iterator that cannot say it."""
    if isinstance(iterator, io.IOBase):
        return None
    try:
        return token_of(iterator.__reduce__())
    except Exception:  # The iterator is the user's own, and may raise anything.
        return None


def token_of(value: Any) -> Any:
    """Returns a value that is equal as long as numbers, texts and identities are.

    Nothing of the user's is called, because this runs while the step is recorded: the text of a
    tensor would take operations of its own.
    """
    if is_simple(value):
        return type(value), value
    if type(value) in (tuple, list):
        return type(value), tuple(map(token_of, value)) if len(value) < 64 else len(value)
    if type(value) is dict:
        return tuple((name, token_of(item)) for name, item in value.items())
    return id(value)
