"""Small HTML tables, which notebooks show in place of the text of an object."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable
from typing import Any

from .. import _core


def table(rows: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Returns a table of names and values. All texts are escaped."""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    head = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{head}{body}</table>"


def lined_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Returns a table with a line of names above it. All texts are escaped."""
    top = "".join(f"<th style='text-align:left'>{html.escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"


def show(name: str, value: Any) -> str:
    """Returns the value of a field as a text for people. Sizes and times get a unit."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int) and name.endswith("bytes"):
        return _core.format_bytes(value)
    if isinstance(value, int) and name.endswith("_ns"):
        return _core.format_duration(value)
    if isinstance(value, (tuple, list)) and len(value) > 4:
        return f"{len(value)} items"
    return str(value)


def fields_html(value: Any) -> str:
    """Returns a table of the fields of a dataclass."""
    rows = [
        (f.name.removesuffix("_bytes").removesuffix("_ns"), show(f.name, getattr(value, f.name)))
        for f in dataclasses.fields(value)
        if f.repr
    ]
    return table(rows, type(value).__name__)
