"""The answer of `fit()` as one page: cards, two pictures and two tables, without outside files."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence

from .. import _core
from .rows import FitRow, FitRows
from .text import (
    best_or_least,
    headline,
    how,
    named,
    rows_a_second,
    size,
    size_up,
    slower,
    verdict,
)

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --panel: #f6f7f8; --ink: #1c2126;
  --soft: #59636e; --line: #dfe3e7; --grid: #e8ebee;
  --good: #1a7f4b; --bad: #b3261e; --c0: #7d8894; --c1: #9a86c9;
  --c2: #e39a3b; --c3: #2f9479; --c4: #a9b2bc; --c5: #62a0dd; --m0: #1f5fa8; --m1: #2f9479;
  --m2: #d4513f; --m3: #7a5cc0; --m4: #8a6d1a; --m5: #59636e; }
@media (prefers-color-scheme: dark) { :root { --page: #14181c; --panel: #1c2227; --ink: #e6eaee;
  --soft: #9aa6b2; --line: #333c45; --grid: #262d34; --good: #58c48c; --bad: #f0857b; --c0: #7f8a96;
  --c1: #8f7cc2; --c2: #cf8a33; --c3: #45b394; --c4: #56606b; --c5: #5795d3; --m0: #7ab3ef;
  --m1: #45b394; --m2: #ea6f5c; --m3: #a58be6; --m4: #d1b25a; --m5: #9aa6b2; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.55 system-ui,
  -apple-system, "Segoe UI", "Noto Sans", "Liberation Sans", sans-serif; }
main { max-width: 1060px; margin: 0 auto; padding: 40px 20px 60px; }
.eyebrow, .note, .sub { color: var(--soft); font-size: 14px; margin: 0; }
h1 { margin: 2px 0 8px; font-size: 34px; line-height: 1.2; font-weight: 650;
  overflow-wrap: anywhere; }
h2 { margin: 46px 0 4px; font-size: 22px; font-weight: 620; }
p { margin: 0 0 12px; max-width: 76ch; }
.lead { font-size: 19px; line-height: 1.5; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(290px, 1fr)); gap: 14px;
  margin: 24px 0 0; }
.card { background: var(--panel); border: 1px solid var(--line); border-top: 4px solid var(--good);
  border-radius: 10px; padding: 14px 16px; }
.card.no { border-top-color: var(--bad); }
.card h3 { margin: 0; font-size: 22px; font-weight: 620; }
.card .verdict { font-weight: 600; margin: 2px 0 8px; }
.card dl { display: grid; grid-template-columns: auto 1fr; gap: 1px 14px; margin: 0;
  font-size: 14.5px; }
.card dt { color: var(--soft); }
.card dd { margin: 0; font-variant-numeric: tabular-nums; }
pre { margin: 10px 0 0; padding: 8px 10px; border: 1px solid var(--line); border-radius: 6px;
  font: 12.5px/1.5 ui-monospace, "SFMono-Regular", Consolas, "DejaVu Sans Mono", monospace;
  white-space: pre-wrap; overflow-wrap: anywhere; background: var(--page); }
.scroll { overflow-x: auto; }
svg { display: block; width: 100%; min-width: 680px; height: auto; font-size: 12.5px;
  font-variant-numeric: tabular-nums; }
svg text { fill: var(--soft); }
svg text.ink { fill: var(--ink); }
svg .grid { stroke: var(--grid); }
.legend { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 4px 0 6px; padding: 0;
  list-style: none; font-size: 14px; color: var(--soft); }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px;
  margin-right: 6px; }
table { border-collapse: collapse; width: 100%; font-size: 14.5px; margin: 8px 0 0;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; vertical-align: top; padding: 6px 12px 6px 0;
  border-bottom: 1px solid var(--line); }
th { color: var(--soft); font-weight: 560; white-space: nowrap; }
td.figure { white-space: nowrap; }
td small { color: var(--soft); display: block; font-size: 13px; }
td.no { color: var(--soft); }
td.best { font-weight: 620; }
"""
WIDTH = 1000
LEFT = 96
_REST = "activations, temporaries"


def page(fit: FitRows) -> str:
    """Returns the page."""
    title = html.escape(headline(fit))
    return (
        "<!doctype html>\n<html lang='en'>\n<head><meta charset='utf-8'>"
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>Will it fit? {title}</title>\n<style>{STYLE}</style></head>\n<body><main>\n"
        f"<p class='eyebrow'>Reprise {_core.__version__}: will it fit?</p>\n<h1>{title}</h1>\n"
        f"<p class='lead'>{html.escape(_lead(fit))}</p>\n"
        f"<p class='note'>Sizes: {html.escape(fit.sizes)}. Times: {html.escape(fit.times)}.</p>\n"
        f"{_cards(fit)}{_memory(fit)}{_speed(fit)}{_all(fit)}{_ways(fit)}{_notes(fit)}"
        "</main></body>\n</html>\n"
    )


def tables(fit: FitRows) -> str:
    """Returns the tables alone, for notebooks."""
    return f"<b>{html.escape(headline(fit))}</b>{_table_of_batches(fit)}"


def _lead(fit: FitRows) -> str:
    holds = [m for m in fit.memories() if fit.best(m) is not None]
    rest = [m for m in fit.memories() if m not in holds]
    parts = []
    if holds:
        parts.append(f"{_listed(map(size, holds))} {_hold(holds)} this step.")
    if rest:
        least = size_up(fit.smallest_budget_bytes())
        parts.append(
            f"{_listed(map(size, rest))} {_hold(rest, no=True)}: the least that was found is "
            f"{least}."
        )
    return " ".join(parts)


def _hold(memories: list[int], no: bool = False) -> str:
    if no:
        return "does not" if len(memories) == 1 else "do not"
    return "holds" if len(memories) == 1 else "hold"


def _listed(texts: Iterable[str]) -> str:
    found = list(texts)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"


def _cards(fit: FitRows) -> str:
    cards = []
    for memory in fit.memories():
        row = best_or_least(fit, memory)
        best = row.best
        facts: list[tuple[str, str]] = []
        if best is not None:
            if row.batch is not None:
                facts.append(("fastest batch", str(row.batch)))
                facts.append(("rows a second", rows_a_second(row)))
            facts += [
                ("step", _core.format_duration(best.time_ns or 0)),
                ("against plain", slower(row, fit)),
                ("peak", size_up(best.peak_bytes or 0)),
            ]
        facts.append(("smallest memory", size_up(row.smallest_budget_bytes)))
        lines = how(row, fit)
        head = f"switch on: {verdict(row)}" if best and best.switch_on else _bare(row)
        cards.append(
            f"<div class='card{'' if best else ' no'}'><h3>{size(memory)}</h3>"
            f"<p class='verdict'>{html.escape(head)}</p><dl>"
            + "".join(f"<dt>{name}</dt><dd>{html.escape(text)}</dd>" for name, text in facts)
            + "</dl>"
            + (f"<pre>{html.escape(lines)}</pre>" if lines else "")
            + "</div>"
        )
    return f"<div class='cards'>{''.join(cards)}</div>\n"


def _bare(row: FitRow) -> str:
    return "plain training fits" if row.best is not None else verdict(row)


def _memory(fit: FitRows) -> str:
    """Returns a bar a batch: who holds plain training's peak, under lines for the memories."""
    names = list(dict.fromkeys(name for one in fit.batches for name in one.held))
    if not names:
        return ""
    names.append(_REST)
    bars = []
    for one in fit.batches:
        known = [one.held.get(name, 0) for name in names[:-1]]
        bars.append([*known, max(0, one.peak_bytes - sum(known))])
    memories = fit.memories()
    largest = max([sum(bar) for bar in bars] + [m for m in memories if m < 3 * max(map(sum, bars))])
    ticks, scale = _axis(largest, (WIDTH - LEFT - 30))
    height = 34 * len(bars) + 62
    parts = [_grid(ticks, scale, 26, height - 30)]
    for index, (one, bar) in enumerate(zip(fit.batches, bars, strict=True)):
        y, x = 34 + 34 * index, float(LEFT)
        label = "step" if one.batch is None else f"batch {one.batch}"
        parts.append(
            f"<text class='ink' x='{LEFT - 10}' y='{y + 15}' text-anchor='end'>{label}</text>"
        )
        for kind, bytes in enumerate(bar):
            width = bytes * scale
            parts.append(
                f"<rect x='{x:.1f}' y='{y}' width='{width:.1f}' height='22' "
                f"fill='var(--c{_colour(names[kind], kind)})'>"
                f"<title>{names[kind]}: {size_up(bytes)}</title></rect>"
            )
            x += width
        end = min(x + 6, WIDTH - 62)
        parts.append(f"<text x='{end:.1f}' y='{y + 15}'>{size(sum(bar))}</text>")
    for memory in memories:
        if memory <= largest:
            x = LEFT + memory * scale
            parts.append(
                f"<line x1='{x:.1f}' x2='{x:.1f}' y1='20' y2='{height - 30}' stroke='var(--ink)' "
                f"stroke-dasharray='4 3'/><text class='ink' x='{x:.1f}' y='14' "
                f"text-anchor='middle'>{size(memory)}</text>"
            )
    legend = _legend((name, f"--c{_colour(name, k)}") for k, name in enumerate(names))
    return (
        "<h2>Plain training against the memories</h2>\n<p class='note'>Each bar is the peak of "
        "plain training. A plan makes the last piece smaller. Gradients that are used up are "
        f"never all there.</p>{legend}<div class='scroll'>{svg(height, parts)}</div>\n"
    )


def _colour(name: str, position: int) -> int:
    known = {"parameters": 0, "optimizer's state": 1, "gradients": 2, "sample": 3, "buffers": 3}
    return 5 if name == _REST else known.get(name, 4)


def _speed(fit: FitRows) -> str:
    """Returns a group of bars a batch: the rows a second in each memory."""
    memories = fit.memories()
    if len(fit.batches) < 2:
        return ""
    rows = {(row.memory_bytes, row.batch): row for row in fit.rows}
    largest = max(row.rows_per_second for row in fit.rows)
    if largest == 0:
        return ""
    height, base = 250, 214
    ticks, scale = _axis(largest, base - 24)
    parts = []
    for tick in ticks:
        y = base - tick * scale
        parts.append(
            f"<line class='grid' x1='{LEFT}' x2='{WIDTH - 10}' y1='{y:.1f}' y2='{y:.1f}'/>"
            f"<text x='{LEFT - 10}' y='{y + 4:.1f}' text-anchor='end'>{tick:g}</text>"
        )
    group = (WIDTH - 10 - LEFT) / len(fit.batches)
    width = min(54.0, 0.8 * group / len(memories))
    for index, one in enumerate(fit.batches):
        start = LEFT + group * index + (group - width * len(memories)) / 2
        middle = LEFT + group * (index + 0.5)
        parts.append(
            f"<text class='ink' x='{middle:.1f}' y='{base + 20}' text-anchor='middle'>"
            f"batch {one.batch}</text>"
        )
        for place, memory in enumerate(memories):
            row = rows[memory, one.batch]
            x, tall = start + place * width, row.rows_per_second * scale
            if row.best is None:
                parts.append(
                    f"<text x='{x + width / 2:.1f}' y='{base - 5}' text-anchor='middle'>no</text>"
                )
                continue
            parts.append(
                f"<rect x='{x + 2:.1f}' y='{base - tall:.1f}' width='{width - 4:.1f}' "
                f"height='{tall:.1f}' rx='2' fill='var(--m{place % 6})'>"
                f"<title>{size(memory)}: {html.escape(named(row.best))}</title></rect>"
                f"<text x='{x + width / 2:.1f}' y='{base - tall - 5:.1f}' text-anchor='middle'>"
                f"{row.rows_per_second:.3g}</text>"
            )
    legend = _legend((size(m), f"--m{k % 6}") for k, m in enumerate(memories))
    return (
        "<h2>Rows a second, by batch and memory</h2>\n"
        f"{legend}<div class='scroll'>{svg(height, parts)}</div>\n"
    )


def _all(fit: FitRows) -> str:
    return f"<h2>Every batch in every memory</h2>\n{_table_of_batches(fit)}\n"


def _table_of_batches(fit: FitRows) -> str:
    memories = fit.memories()
    rows = {(row.memory_bytes, row.batch): row for row in fit.rows}
    head = ["batch", "plain peak", "plain step", "smallest memory", *map(size, memories)]
    body = []
    for one in fit.batches:
        own = [rows[memory, one.batch] for memory in memories]
        least = min(row.smallest_budget_bytes for row in own)
        cells = [
            f"<td class='figure'>{'' if one.batch is None else one.batch}</td>",
            f"<td class='figure'>{size_up(one.peak_bytes)}</td>",
            f"<td class='figure'>{_core.format_duration(one.time_ns)}</td>",
            f"<td class='figure'>{size_up(least)}</td>",
        ]
        body.append("".join(cells + [_cell(row, fit) for row in own]))
    return table(head, body)


def _cell(row: FitRow, fit: FitRows) -> str:
    if row.best is None:
        return f"<td class='no'>{html.escape(verdict(row).partition(':')[0])}</td>"
    is_best = fit.best(row.memory_bytes) == row
    figures = f"{_core.format_duration(row.best.time_ns or 0)} ({slower(row, fit)})"
    return (
        f"<td class='{'best' if is_best else ''}'>{figures}"
        f"<small>{html.escape(named(row.best))}</small></td>"
    )


def _ways(fit: FitRows) -> str:
    """Returns all ways that were looked at, folded away."""
    body = []
    for row in fit.rows:
        for way in row.ways:
            name = named(way)
            time = way.time_ns
            if time is not None:
                text = _core.format_duration(time)
            elif way.smallest_budget_bytes > row.memory_bytes:
                text = "does not fit"
            else:
                text = "not planned: slower than another way, or no plan found in time"
            bound = "" if way.lower_bound_ns is None else _core.format_duration(way.lower_bound_ns)
            cells = [size(row.memory_bytes), str(row.batch or ""), name]
            cells += [size_up(way.smallest_budget_bytes), text, bound]
            body.append("".join(f"<td>{html.escape(cell)}</td>" for cell in cells))
    head = ["memory", "batch", "switch on", "smallest memory", "step", "no plan is below"]
    return (
        "<h2>All ways</h2>\n<details><summary>Every way that was looked at</summary>"
        f"{table(head, body)}</details>\n"
    )


def _notes(fit: FitRows) -> str:
    if not fit.notes:
        return ""
    items = "".join(f"<li>{html.escape(note)}</li>" for note in fit.notes)
    return f"<h2>Notes</h2>\n<ul>{items}</ul>\n"


def table(head: Sequence[str], body: Sequence[str]) -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    rows = "".join(f"<tr>{row}</tr>" for row in body)
    inside = f"<thead><tr>{top}</tr></thead><tbody>{rows}</tbody>"
    return f"<div class='scroll'><table>{inside}</table></div>"


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(
        f"<li><i style='background:var({colour})'></i>{html.escape(name)}</li>"
        for name, colour in entries
    )
    return f"<ul class='legend'>{items}</ul>"


def svg(height: int, parts: Sequence[str]) -> str:
    return f"<svg viewBox='0 0 {WIDTH} {height}' role='img'>{''.join(parts)}</svg>"


def _axis(largest: float, length: float) -> tuple[list[float], float]:
    """Returns round ticks from 0 on, and the length of one unit."""
    raw = largest / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= raw)
    ticks = [step * k for k in range(math.ceil(largest / step) + 1)]
    return ticks, length / ticks[-1]


def _grid(ticks: list[float], scale: float, top: int, bottom: int) -> str:
    parts = []
    for tick in ticks:
        x = LEFT + tick * scale
        parts.append(
            f"<line class='grid' x1='{x:.1f}' x2='{x:.1f}' y1='{top}' y2='{bottom}'/>"
            f"<text x='{x:.1f}' y='{bottom + 18}' text-anchor='middle'>{size(int(tick))}</text>"
        )
    return "".join(parts)
