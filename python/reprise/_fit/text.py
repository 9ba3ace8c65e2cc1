"""The answer of `fit()` as text."""

from __future__ import annotations

from .. import _core
from .rows import FitRow, FitRows, FitWay


def size(bytes: int) -> str:
    """Returns bytes as people name the memory of devices: in powers of 1000, "80 GB"."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if bytes >= unit:
            return f"{bytes / unit:.3g} {name}"
    return f"{bytes} B"


def size_up(bytes: int) -> str:
    """Returns bytes with two digits behind the point, rounded up, so that a budget of it holds."""
    for unit, name in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if bytes >= unit:
            return f"{-(-bytes * 100 // unit) / 100:.2f} {name}"
    return f"{bytes} B"


def count(number: int) -> str:
    """Returns a number of things for people, such as "6.74 B"."""
    for unit, name in ((10**9, " B"), (10**6, " M"), (10**3, " k")):
        if number >= unit:
            return f"{number / unit:.3g}{name}"
    return str(number)


def headline(fit: FitRows) -> str:
    """Returns the first line of the answer."""
    parameters = "" if fit.parameters is None else f", {count(fit.parameters)} parameters"
    return f"{fit.name}{parameters}"


def slower(row: FitRow, fit: FitRows) -> str:
    """Returns how much longer a step takes than plain training's, such as "+3.4 %"."""
    plain = next(one for one in fit.batches if one.batch == row.batch)
    if row.best is None or not row.best.time_ns or not plain.time_ns:
        return ""
    return f"{100 * row.best.time_ns / plain.time_ns - 100:+.1f} %"


def rows_a_second(row: FitRow) -> str:
    """Returns the rows a second with three digits, or "" where the batch is not known."""
    return "" if row.batch is None else f"{row.rows_per_second:.3g}"


def named(way: FitWay) -> str:
    """Returns the name of a way."""
    return str(way) if way.switch_on else "plain training"


def verdict(row: FitRow) -> str:
    """Returns what is to be switched on, or what is missing."""
    if row.best is not None:
        return str(row.best)
    missing = row.smallest_budget_bytes - row.memory_bytes
    if missing <= 0:
        return "no plan was found in time: give the searches more"
    return f"does not fit: {size_up(missing)} more are needed"


def best_or_least(fit: FitRows, memory: int) -> FitRow:
    """Returns the fastest row of a memory, or the row that needs the least if nothing fits."""
    rows = [row for row in fit.rows if row.memory_bytes == memory]
    return fit.best(memory) or min(rows, key=lambda row: row.smallest_budget_bytes)


def how(row: FitRow, fit: FitRows) -> str:
    """Returns the lines of a program that run the step in the best way, or "" for plain ones."""
    best = row.best
    if best is None or not best.switch_on:
        return ""
    plain = next(one for one in fit.batches if one.batch == row.batch)
    bytes = row.memory_bytes - plain.held.get("fixed", 0)
    text = size(bytes)
    budget = f'"{text}"' if _core.parse_bytes(text) == bytes else str(bytes)
    if best.parts > 1:
        parts = f"parts=[{best.parts}]"
        return f"step = reprise.micro_batches(part, *sample, {parts}, budget={budget})"
    uses_up = any("gradients used up" in one for one in best.switch_on)
    optimizer = ", optimizer=optimizer" if uses_up else ""
    return f"step = reprise.capture(step, *sample{optimizer})\nstep.plan(budget={budget})"


def by_memory(fit: FitRows) -> list[str]:
    """Returns the table with a line for each memory."""
    head = ["memory", "fastest batch", "switch on", "step", "against plain", "rows/s", "peak"]
    table = []
    for memory in fit.memories():
        row = best_or_least(fit, memory)
        best = row.best
        table.append(
            [
                size(memory),
                "" if best is None or row.batch is None else str(row.batch),
                verdict(row),
                "" if best is None else _core.format_duration(best.time_ns or 0),
                slower(row, fit),
                "" if best is None else rows_a_second(row),
                "" if best is None else size_up(best.peak_bytes or 0),
            ]
        )
    return _aligned(head, table)


def by_batch(fit: FitRows) -> list[str]:
    """Returns the table with a line for each batch."""
    memories = fit.memories()
    head = ["batch", "plain peak", "plain step", "smallest memory", *map(size, memories)]
    table = []
    for plain in fit.batches:
        rows = {row.memory_bytes: row for row in fit.rows if row.batch == plain.batch}
        cells = [_cell(rows[memory], fit) for memory in memories]
        least = min(row.smallest_budget_bytes for row in rows.values())
        table.append(
            [
                "" if plain.batch is None else str(plain.batch),
                size_up(plain.peak_bytes),
                _core.format_duration(plain.time_ns),
                size_up(least),
                *cells,
            ]
        )
    return _aligned(head, table)


def _cell(row: FitRow, fit: FitRows) -> str:
    if row.best is None:
        return "-"
    return f"{slower(row, fit)}: {row.best}" if row.best.switch_on else "plain"


def _aligned(head: list[str], rows: list[list[str]]) -> list[str]:
    """Returns a table as lines. Columns that are empty in all rows are left out."""
    used = [c for c in range(len(head)) if any(row[c] for row in rows)]
    lines = [[line[c] for c in used] for line in (head, *rows)]
    widths = [max(len(line[c]) for line in lines) for c in range(len(used))]
    padded = ([c.ljust(w) for c, w in zip(line, widths, strict=True)] for line in lines)
    return ["  ".join(cells).rstrip() for cells in padded]
