"""Whether this thread runs a function to record it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from ..errors import InputError


class _Recording(threading.local):
    now = False


_recording = _Recording()


@contextlib.contextmanager
def under_way() -> Iterator[None]:
    """Says that the scope runs a function to record it, or beside its recording."""
    before, _recording.now = _recording.now, True
    try:
        yield
    finally:
        _recording.now = before


def refuse_planned_model() -> None:
    """Raises InputError if a planned model is called by a function that is recorded."""
    if _recording.now:
        raise InputError(
            "the step calls a planned model (remat), and graph mode plans the whole step itself: "
            "let the step call the model that the planned one was made of, or leave the budget to "
            "the planned model and capture nothing"
        )
