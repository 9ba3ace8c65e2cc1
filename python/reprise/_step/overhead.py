"""What a step costs beside the training itself: captures, measurements and searches for plans."""

from __future__ import annotations

import contextlib
import logging
import re
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .. import _core

_log = logging.getLogger("reprise")

# So many are kept, as in the runtime.
_KEPT = 32


@dataclass(frozen=True)
class Overhead:
    """A capture, a measurement, a search for a plan, or a choice of a mode.

    Attributes:
        work: The work: "capture", "measure", "plan" or "choose a mode".
        why: The reason in words.
        time_ns: The time that it took, in nanoseconds on the clock.
        found: What came of it, or why it failed.
    """

    work: str
    why: str
    time_ns: int
    found: str

    def __str__(self) -> str:
        time_taken = _core.format_duration(self.time_ns)
        return f"{self.work} in {time_taken}, because {self.why}: {self.found}"


class Overheads:
    """The overheads of a step, in their order. Each one is a line of the log "reprise" (info).

    The second one for the same reason is a RuntimeWarning, once for each reason. Numbers in the
    reason do not count. What was asked for (`asked`) is no reason to warn.
    """

    def __init__(self, name: str, asked: Sequence[str] = ()) -> None:
        self._name = name
        self._asked = tuple(asked)
        self._last: deque[Overhead] = deque(maxlen=_KEPT)
        self._causes: Counter[tuple[str, str]] = Counter()
        self.seen = 0  # of those that the runtime has noted

    def add(self, overhead: Overhead) -> None:
        """Adds an overhead, and logs it."""
        self._last.append(overhead)
        _log.info("%s: %s", self._name, overhead)
        if overhead.why.startswith(self._asked):
            return
        cause = overhead.work, re.sub(r"[\d.]+( [KMGT]?i?B)?", "", overhead.why)
        self._causes[cause] += 1
        if self._causes[cause] == 2:
            warnings.warn(
                f"{self._name}: {overhead}. This is the second time for this reason, and each time "
                "costs as much again; report().overheads has the last ones",
                RuntimeWarning,
                stacklevel=2,
            )

    @contextlib.contextmanager
    def noting(self, work: str, why: str) -> Iterator[list[str]]:
        """Notes the work of the scope. The scope appends what it has found to the list."""
        begin = time.perf_counter_ns()
        found: list[str] = []
        try:
            yield found
        except Exception as error:
            found.append(str(error).strip() or type(error).__name__)
            raise
        finally:
            taken = time.perf_counter_ns() - begin
            self.add(Overhead(work, why, taken, "; ".join(found) or "interrupted"))

    def follow(
        self, last: Sequence[tuple[str, str, int, str]], count: int, captures: bool = True
    ) -> None:
        """Adds what the runtime has noted since the last call.

        Args:
            last: The runtime's last overheads.
            count: The number of them so far.
            captures: Whether captures are added, too. Those that `noting()` has noted are not.
        """
        new = min(count - self.seen, len(last))
        self.seen = count
        for row in last[len(last) - new :]:
            if captures or row[0] != "capture":
                self.add(Overhead(*row))

    def begin_anew(self) -> None:
        """Says that another object of the runtime begins to count."""
        self.seen = 0

    def last(self) -> tuple[Overhead, ...]:
        """Returns the last overheads, in their order."""
        return tuple(self._last)
