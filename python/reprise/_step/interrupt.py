"""An interrupt inside the user's functions ends the call of Reprise that runs them.

The runtime has an answer to an exception of such a function: it refuses a recording, or it tries
another way. An interrupt, such as KeyboardInterrupt, is for the caller.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Noted(threading.local):
    interrupt: BaseException | None = None


_noted = _Noted()


def note_interrupt(error: BaseException) -> None:
    """Notes what has ended a function of the user, if it is an interrupt."""
    if not isinstance(error, Exception):
        _noted.interrupt = error


@contextlib.contextmanager
def obeying_interrupts() -> Iterator[None]:
    """Raises an interrupt that was noted in the scope, whatever the runtime has made of it."""
    _noted.interrupt = None
    try:
        yield
    except Exception:
        if _noted.interrupt is None:
            raise
    noted, _noted.interrupt = _noted.interrupt, None
    if noted is not None:
        raise noted
