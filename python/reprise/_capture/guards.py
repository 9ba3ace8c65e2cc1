"""Guards: what a step reads from Python, compared before each call of its recording.

A captured step does not run Python again, so a number that Python gave to an operation stays that
of the capture. The guards notice when the program says something else by now. They watch what the
function shows: its closure, defaults and code, the globals and attributes that its code names, and
all modules.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .._step.tree import is_simple
from .._torch import _runtime
from ..errors import InputError
from .chance import put_back, shared_generators
from .opened import note_opened_files, opened, state_of_file
from .reached import LIBRARIES, MODULES, Walk, hooks_of_all_modules
from .watch import Watch, text_of

# Names that code reads the environment by.
ENVIRONMENT = {"environ", "environb", "getenv"}


class Guards:
    """Guards watch the things that a step reads from Python.

    The watches are made behind the first recorded run. If a later run changes a watched thing, the
    replay would miss that change, so the step is refused.

    Args:
        functions: The functions that a call of the recording stands for.
        modules: The modules of the step, beside those that the functions show.
        unguarded: The names of state that may change.
        before: The guards that these replace, for a step that was captured for other outcomes of
            its host reads, too. The files that it was found to read are compared as well.
    """

    def __init__(
        self,
        functions: list[Callable[..., Any]],
        modules: list[torch.nn.Module],
        unguarded: tuple[str, ...],
        before: Guards | None = None,
    ) -> None:
        self._functions = functions
        self._modules = modules
        self._unguarded = unguarded
        self._files: set[str] = set() if before is None else set(before._files)
        self._watched = _runtime.Watched()
        self._fast: dict[int, Watch] = {}  # by number in `_watched`
        self._watches: list[Watch] | None = None
        self._unwatched: list[str] = []
        self._generators: list[tuple[str, Callable[[], Any], Any]] = []
        self._shared = shared_generators()
        numpy = sys.modules.get("numpy")
        self._random = random.getstate(), None if numpy is None else numpy.random.get_state()
        self._changed: dict[str, tuple[Any, Any]] = {}
        self._lost: set[str] = set()
        self._draws: list[str] = []

    def after_run(self) -> None:
        """Notes what a recorded run of the function has changed."""
        shared = shared_generators()
        self._draws += [name for name, state in shared.items() if state != self._shared.get(name)]
        self._shared = shared
        if self._watches is not None:
            self._draws += [path for path, read, state in self._generators if read() != state]
            self._changed = {}
            for watch in self._watches:
                if watch.holds():
                    continue
                for name, before, now in watch.changes():
                    if self._may_change(name):
                        continue
                    if _matters(before, now):
                        self._changed[name] = before, now
                    else:
                        self._lost.add(name)
        self._walk()

    def _walk(self) -> None:
        names: set[str] = set()
        while True:
            walk = Walk(names)
            for function in self._functions:
                walk.visit(function, getattr(function, "__name__", "step"))
            for i, module in enumerate(self._modules):
                walk.visit(module, f"modules[{i}]")
            if walk.names <= names:
                break
            names |= walk.names
        self._watches = walk.watches
        self._unwatched = walk.unwatched
        self._generators = [(path, read, read()) for path, read in walk.generators]
        self._watches.append(Watch("torch.nn.modules.module", hooks_of_all_modules, MODULES))
        if names & ENVIRONMENT:
            self._watches.append(
                Watch("os.environ", lambda: (
                    tuple(f"[{key!r}]" for key in os.environ), tuple(os.environ.values())
                ), "the environment")
            )  # fmt: skip

    def settle(self) -> None:
        """Ends the recording.

        Raises:
            InputError: A run of the function has changed what it reads from Python, or has drawn
                from a generator of Python or NumPy.
        """
        if self._draws:
            raise InputError(
                f"the step cannot be captured: it takes something from {self._draws[0]}, which "
                "gives something else at each call, and a captured step would keep what it got. "
                "Draw before the step, and hand it over as an input"
            )
        if self._changed:
            name, (before, now) = next(iter(self._changed.items()))
            raise InputError(
                f"the step cannot be captured: each call changes {name} (from {text_of(before)} to "
                f"{text_of(now)}), and a captured step does not run Python again. Change it "
                "outside the step, make it a tensor that the step writes in place, or name it in "
                "unguarded= if it has no effect on the step"
            )
        assert self._watches is not None
        watches, self._watches = self._watches, []
        for watch in watches:
            if watch.sources is None:
                self._watches.append(watch)
            else:
                self._fast[self._watched.add(*watch.sources)] = watch
        for path in sorted(self._files):
            self._watches.append(Watch(path, functools.partial(state_of_file, path), "files"))
        for watch in [*self._watches, *self._fast.values()]:
            # New values may come to an object that may change.
            if self._is_lost(watch.path) or any(
                self._is_lost(watch.path + name) for name in watch.names
            ):
                watch.forget(self._is_lost)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Notes the files that the functions read in the scope.

        The generators that Python and NumPy share are afterwards as before.
        """
        note_opened_files()
        before, opened.now = opened.now, self._files
        try:
            yield
        finally:
            opened.now = before
            put_back(*self._random)

    def _may_change(self, name: str) -> bool:
        return any(
            name == free or name.startswith((f"{free}.", f"{free}[")) for free in self._unguarded
        )

    def _is_lost(self, name: str) -> bool:
        return name in self._lost or self._may_change(name)

    def difference(self) -> str:
        """Says in words what differs from the capture. The text is empty if nothing does."""
        assert self._watches is not None
        for number in self._watched.changed():
            if text := self._fast[number].difference():
                return text
            self._watched.renew(number)
        for watch in self._watches:
            if text := watch.difference():
                return text
        return ""

    def names(self) -> list[str]:
        """Returns the names of all that is compared before each call."""
        return sorted({name for names in self.by_kind().values() for name in names})

    def by_kind(self) -> dict[str, tuple[str, ...]]:
        """Returns the names of all that is compared before each call, by kind of state."""
        assert self._watches is not None
        found: dict[str, set[str]] = {}
        for watch in [*self._watches, *self._fast.values()]:
            names = [""] if watch.kind == LIBRARIES else watch.names
            found.setdefault(watch.kind, set()).update(watch.path + name for name in names)
        return {kind: tuple(sorted(names)) for kind, names in sorted(found.items()) if names}

    def unwatched(self) -> tuple[str, ...]:
        """Returns the state that the function reaches and that is not compared, with the reason."""
        lost = [f"{name}: each call makes a new object" for name in self._lost]
        return tuple(sorted({*self._unwatched, *lost}))


def _matters(before: Any, now: Any) -> bool:
    """Says whether a change within a step is one of Python's state, and not a new object only."""
    return is_simple(before) or is_simple(now)
