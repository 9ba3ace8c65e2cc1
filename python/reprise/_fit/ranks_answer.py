"""The answer of `fit_ranks()`, as a table for people, as a page and as JSON."""

from __future__ import annotations

import dataclasses
import html
import math
import os
from dataclasses import dataclass
from typing import Any, NamedTuple

from .. import _core
from .._planning.document import Path, dumps
from .page import LEFT, STYLE, WIDTH, svg, table
from .text import size, size_up


class RanksRow(NamedTuple):
    """A number of devices, divided in one way.

    Attributes:
        ranks: The number of devices.
        depth: The number of parts of a pipeline.
        replicas: The number of pipelines.
        micro_batches: The micro-batches of each pipeline.
        time_ns: The time of a step in nanoseconds, or None if no plan fits.
        pipeline_ns: The part of this time in which the pipelines run, or None.
        ring_ns: The rest, in which gradients are still added up over the replicas.
        ring_busy_ns: The longest that a device adds up gradients, also beside its pipeline.
        peak_bytes: The most bytes on a device, or None.
        gradient_bytes: The most bytes of weight gradients on a device.
        efficiency: The time on one device of any size over ranks and time: 1 is perfect.
        needed_bytes: The bytes of the closest plan if none fits.
        why: The reason if no plan fits.
    """

    ranks: int
    depth: int
    replicas: int
    micro_batches: int
    time_ns: int | None = None
    pipeline_ns: int | None = None
    ring_ns: int = 0
    ring_busy_ns: int = 0
    peak_bytes: int | None = None
    gradient_bytes: int = 0
    efficiency: float = 0.0
    needed_bytes: int | None = None
    why: str = ""


@dataclass(frozen=True)
class RanksFit:
    """The answer of `fit_ranks()`. `str()` of it is a table for people, and `html()` is a page.

    Attributes:
        name: The name of the chain.
        memory_bytes: The bytes of each device.
        micro_batches: The micro-batches of a step, over all replicas.
        alone_ns: The time of a step on one device of any size, in nanoseconds.
        rows: One row for each number of devices and depth.
    """

    name: str
    memory_bytes: int
    micro_batches: int
    alone_ns: int
    rows: tuple[RanksRow, ...]

    def ranks(self) -> list[int]:
        """Returns the numbers of devices that have a row."""
        return list(dict.fromkeys(row.ranks for row in self.rows))

    def best(self, ranks: int) -> RanksRow | None:
        """Returns the fastest row of a number of devices, or None if no plan fits."""
        rows = [row for row in self.rows if row.ranks == ranks and row.time_ns is not None]
        return min(rows, key=lambda row: row.time_ns or 0, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Returns the answer as a dict of simple values."""
        found = dataclasses.asdict(self)
        found["rows"] = [row._asdict() for row in self.rows]
        return found

    def to_json(self) -> str:
        """Returns the answer as JSON."""
        return dumps(self.to_dict())

    def html(self) -> str:
        """Returns the answer as one page without outside files."""
        title = html.escape(f"{self.name} on {_listed(self.ranks())} devices")
        return (
            "<!doctype html>\n<html lang='en'>\n<head><meta charset='utf-8'>"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>"
            f"<title>{title}</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
            f"<p class='eyebrow'>Reprise {_core.__version__}: what if there were more devices?</p>"
            f"\n<h1>{title}</h1>\n<p class='lead'>{html.escape(self._lead())}</p>\n"
            f"{_chart(self)}<h2>Every division</h2>\n{self._repr_html_()}</main></body>\n</html>\n"
        )

    def save(self, path: Path) -> None:
        """Writes the answer to a file: a page, or JSON if the name ends with `.json`.

        Raises:
            InputError: The file cannot be written.
        """
        name = os.fspath(path)
        _core.write_file(name, self.to_json() if name.endswith(".json") else self.html())

    def _lead(self) -> str:
        alone = _core.format_duration(self.alone_ns)
        return (
            f"A step has {self.micro_batches} micro-batches and takes {alone} on one device of any "
            f"size. Each device here has {size(self.memory_bytes)}."
        )

    def _cells(self) -> list[list[str]]:
        cells = []
        for row in self.rows:
            mark = "*" if row is self.best(row.ranks) else ""
            how = [f"{row.ranks}{mark}", f"{row.replicas} x {row.depth}", str(row.micro_batches)]
            if row.time_ns is None:
                needs = "" if row.needed_bytes is None else f"needs {size_up(row.needed_bytes)}"
                cells.append([*how, "does not fit", "", "", "", "", needs])
                continue
            cells.append(
                [
                    *how,
                    _core.format_duration(row.time_ns),
                    _core.format_duration(row.ring_ns),
                    _core.format_duration(row.ring_busy_ns),
                    f"{self.alone_ns / max(1, row.time_ns):.1f}",
                    f"{100 * row.efficiency:.0f} %",
                    size_up(row.peak_bytes or 0),
                ]
            )
        return cells

    def __str__(self) -> str:
        cells = [_HEAD, *self._cells()]
        widths = [max(len(row[k]) for row in cells) for k in range(len(_HEAD))]
        lines = [f"{self.name}: what if there were more devices?", self._lead(), ""]
        lines += [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
            for row in cells
        ]
        return "\n".join([*lines, "", "* the fastest division of this number of devices"])

    def _repr_html_(self) -> str:
        body = [
            "".join(f"<td class='figure'>{html.escape(cell)}</td>" for cell in row)
            for row in self._cells()
        ]
        return table(_HEAD, body)


_HEAD = [
    "devices",
    "replicas x parts",
    "micro-batches each",
    "step",
    "of it, adding up",
    "adding up in all",
    "speed",
    "efficiency",
    "peak",
]


def _listed(numbers: list[int]) -> str:
    return str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"


def _chart(fit: RanksFit) -> str:
    """Returns a picture: how much faster than one device, over the devices, both as powers of 2."""
    best = [(n, row) for n in sorted(fit.ranks()) if (row := fit.best(n)) is not None]
    if len(best) < 2:
        return ""
    top, base, right = 24, 290, WIDTH - 60
    last = math.log2(best[-1][0])
    across = (right - LEFT) / max(1.0, last)
    up = (base - top) / max(1.0, last)
    parts = []
    for power in range(math.ceil(last) + 1):
        x, y = LEFT + power * across, base - power * up
        if x > right + 1:
            break
        parts.append(
            f"<line class='grid' x1='{LEFT}' x2='{right}' y1='{y:.1f}' y2='{y:.1f}'/>"
            f"<text x='{LEFT - 10}' y='{y + 4:.1f}' text-anchor='end'>{2**power}</text>"
            f"<text x='{x:.1f}' y='{base + 20}' text-anchor='middle'>{2**power}</text>"
        )
    points = []
    for number, row in best:
        speed = fit.alone_ns / max(1, row.time_ns or 1)
        x, y = LEFT + math.log2(number) * across, base - max(0.0, math.log2(speed)) * up
        points.append(f"{x:.1f},{y:.1f}")
        name = f"{number} devices: {row.replicas} x {row.depth}, {speed:.1f} times as fast"
        parts.append(
            f"<circle cx='{x:.1f}' cy='{y:.1f}' r='4' fill='var(--m0)'><title>{name}</title>"
            f"</circle><text class='ink' x='{x:.1f}' y='{y + 18:.1f}' text-anchor='middle'>"
            f"{row.replicas} x {row.depth}</text>"
        )
    ideal = f"{LEFT},{base} {right},{base - last * up:.1f}"
    lines = (
        f"<polyline points='{ideal}' fill='none' stroke='var(--soft)' stroke-dasharray='4 3'/>"
        f"<polyline points='{' '.join(points)}' fill='none' stroke='var(--m0)' stroke-width='2'/>"
    )
    return (
        "<h2>How much faster than one device</h2>\n<p class='note'>Across: devices. Up: speed. "
        "Each point is the fastest division, replicas x parts; the dashed line is perfect.</p>"
        f"<div class='scroll'>{svg(base + 34, [lines, *parts])}</div>\n"
    )
