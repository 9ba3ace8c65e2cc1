"""Frozen dataclasses from and to the JSON forms of the project's files.

A field has the name of the file's key. The C++ core reads and writes the files, and it alone judges
what a file may contain; this module validates nothing.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    """Returns the type of each field of a dataclass that is a key of its file."""
    hints = typing.get_type_hints(kind)
    return {f.name: hints[f.name] for f in dataclasses.fields(kind) if in_file(f)}


def in_file(field: dataclasses.Field[Any]) -> bool:
    """Returns whether a field is one of the file's keys."""
    return bool(field.init) and bool(field.metadata.get("file", True))


def decode(kind: Any, value: Any) -> Any:
    """Returns the value of type `kind` whose JSON form is `value`.

    Args:
        kind: A dataclass, a named tuple, a tuple type such as `tuple[Stage, ...]`, a union of
            documents, or any other type. Values of other types are returned as they are.
        value: The JSON form, as `json.loads()` returns it.
    """
    if dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(typing.cast(type, kind))
        return typing.cast(Any, kind)(
            **{key: decode(hints[key], item) for key, item in value.items() if key in hints}
        )
    if hasattr(kind, "_fields"):  # a named tuple
        return kind(*value)
    origin = typing.get_origin(kind)
    if origin is tuple:
        arguments = typing.get_args(kind)
        return tuple(decode(arguments[0], item) for item in value)
    if origin in (typing.Union, types.UnionType):
        for option in typing.get_args(kind):
            if getattr(option, "FORMAT", None) == _format_of(value):
                return decode(option, value)
    return value


def _format_of(value: Any) -> Any:
    return value.get("format") if isinstance(value, dict) else None


def encode(value: Any) -> Any:
    """Returns the JSON form of a value. Fields that are None are left out."""
    if hasattr(value, "_fields"):
        return [encode(item) for item in value if item != ""]
    if isinstance(value, (tuple, list)):
        return [encode(item) for item in value]
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    is_file = hasattr(value, "FORMAT")
    head = {key.lower(): getattr(value, key) for key in ("FORMAT", "VERSION")} if is_file else {}
    fields = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value) if in_file(f))
    return head | {name: encode(item) for name, item in fields if item is not None}
