"""The files that a thread opens to read within a scope."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from .watch import State


class _Opened(threading.local):
    """The set that gets the names of the files that this thread opens to read, or None."""

    now: set[str] | None = None


opened = _Opened()


def _on_audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or opened.now is None:
        return
    path, mode = arguments[:2]
    if not isinstance(path, str) or not isinstance(mode, str) or set(mode) & set("wax+"):
        return
    if not path.endswith((".py", ".pyc", ".so")) and not path.startswith(("/proc", "/sys", "/dev")):
        opened.now.add(os.path.abspath(path))


@functools.cache
def note_opened_files() -> None:
    """Begins to hear which files are opened. Python has no way to end that."""
    sys.addaudithook(_on_audit)


def state_of_file(path: str) -> State:
    try:
        found = os.stat(path)
    except OSError:
        return (" (modified)",), (None,)
    return (" (modified)",), ((found.st_mtime_ns, found.st_size),)
