"""How objects show themselves in notebooks: small tables without style of their own."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable
from typing import Any

from . import _core


def table(rows: Iterable[tuple[str, str]], caption: str = "") -> str:
    """Names and values, both escaped."""
    body = "".join(
        f"<tr><th style='text-align:left'>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in rows
    )
    head = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    return f"<table>{head}{body}</table>"


def show(name: str, value: Any) -> str:
    """A field for people: sizes and times in units."""
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
    rows = [
        (f.name.removesuffix("_bytes").removesuffix("_ns"), show(f.name, getattr(value, f.name)))
        for f in dataclasses.fields(value)
        if f.repr
    ]
    return table(rows, type(value).__name__)


def curve_html(picture: str, value: Any) -> str:
    return picture + fields_html(value)
