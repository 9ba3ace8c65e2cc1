"""The ways, batches and memories that `fit()` has looked at, as values."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _core


@dataclass(frozen=True)
class FitWay:
    """One way to run a step in a memory.

    Attributes:
        switch_on: The things to switch on, in words. It is empty for plain training.
        parts: The number of parts along the batch.
        smallest_budget_bytes: The smallest memory for which the planner has a plan in this way.
        time_ns: The time of the whole step in nanoseconds, or None if the step does not fit or was
            not planned because it cannot be faster than another way.
        peak_bytes: The most bytes that the step holds at one time, or None.
        lower_bound_ns: A time that no plan of this way can beat in this memory, or None.
    """

    switch_on: tuple[str, ...]
    parts: int
    smallest_budget_bytes: int
    time_ns: int | None = None
    peak_bytes: int | None = None
    lower_bound_ns: int | None = None

    def __str__(self) -> str:
        return ", ".join(self.switch_on) or "nothing"


@dataclass(frozen=True)
class FitRow:
    """A step in one memory with one batch.

    Attributes:
        memory_bytes: The size of the memory.
        batch: The rows of the batch, or None if the problem does not say.
        best: The fastest way, or None if no way fits.
        ways: All ways that were looked at.
    """

    memory_bytes: int
    batch: int | None
    best: FitWay | None
    ways: tuple[FitWay, ...]

    @property
    def smallest_budget_bytes(self) -> int:
        """The smallest memory for which the planner has a plan, in any way."""
        return min(way.smallest_budget_bytes for way in self.ways)

    @property
    def rows_per_second(self) -> float:
        """The rows that the best way takes a second; 0 if no way fits."""
        if self.best is None or not self.best.time_ns:
            return 0.0
        return (self.batch or 1) * 1e9 / self.best.time_ns


@dataclass(frozen=True)
class FitBatch:
    """A step with one batch, as plain training runs it.

    Attributes:
        batch: The rows of the batch, or None if the problem does not say.
        peak_bytes: The most bytes that plain training holds at one time.
        time_ns: The time of plain training's step in nanoseconds.
        held: The bytes of what is held during the whole step or at its end, by name.
    """

    batch: int | None
    peak_bytes: int
    time_ns: int
    held: dict[str, int]


@dataclass(frozen=True)
class FitRows:
    """The values of an answer of `fit()`.

    Attributes:
        name: The name of the step.
        times: The source of the times, in words.
        sizes: The source of the sizes, in words.
        batches: The batches that were looked at.
        rows: One row for each memory and batch.
        notes: The parts of the question that have no answer, with the reasons.
        parameters: The number of elements of all parameters, or None if it is unknown.
    """

    name: str
    times: str
    sizes: str
    batches: tuple[FitBatch, ...]
    rows: tuple[FitRow, ...]
    notes: tuple[str, ...] = ()
    parameters: int | None = None

    def memories(self) -> list[int]:
        """Returns the sizes of the memories in the order in which they were given."""
        return list(dict.fromkeys(row.memory_bytes for row in self.rows))

    def best(self, memory: int | str) -> FitRow | None:
        """Returns the row with the most rows a second in a memory, or None if nothing fits.

        Args:
            memory: The size of one of the memories, in bytes or as a text such as "80GB".
        """
        size = _core.parse_bytes(memory) if isinstance(memory, str) else memory
        fitting = [row for row in self.rows if row.memory_bytes == size and row.best is not None]
        return max(fitting, key=lambda row: row.rows_per_second, default=None)

    def smallest_budget_bytes(self) -> int:
        """Returns the smallest memory for which some batch has a plan."""
        return min(row.smallest_budget_bytes for row in self.rows)
