"""The answer of `fit()`, as a table for people, as a page and as JSON."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from .. import _core
from .._planning.document import Path, dumps
from .page import page, tables
from .rows import FitRows
from .text import by_batch, by_memory, headline


@dataclass(frozen=True)
class Fit(FitRows):
    """The answer of `fit()`. `str()` of it is a table for people, and `html()` is a page.

    Attributes:
        name: The name of the step.
        times: The source of the times, in words.
        sizes: The source of the sizes, in words.
        batches: The batches that were looked at.
        rows: One row for each memory and batch.
        notes: The parts of the question that have no answer, with the reasons.
        parameters: The number of elements of all parameters, or None if it is unknown.
    """

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as a dict of simple values."""
        return dataclasses.asdict(self)

    def to_json(self) -> str:
        """Returns the answer as JSON."""
        return dumps(self.to_dict())

    def html(self) -> str:
        """Returns the answer as one page without outside files."""
        return page(self)

    def save(self, path: Path) -> None:
        """Writes the answer to a file: a page, or JSON if the name ends with `.json`.

        Raises:
            InputError: The file cannot be written.
        """
        name = os.fspath(path)
        _core.write_file(name, self.to_json() if name.endswith(".json") else self.html())

    def __str__(self) -> str:
        lines = [headline(self), f"Sizes: {self.sizes}.", f"Times: {self.times}."]
        lines += ["", *by_memory(self), "", *by_batch(self)]
        lines += [f"Note: {note}." for note in self.notes]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return tables(self)
