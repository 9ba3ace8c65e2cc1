"""Nested values of a program as JSON and tensors, for saved states, and back.

JSON's own values stand for themselves. Values of other kinds are objects of one key:
`{"float": "0.1"}`, `{"int": "..."}`, `{"tuple": [...]}`, `{"dict": [[key, value], ...]}`,
`{"counter": [[key, value], ...]}`, `{"bytes": "hexadecimal"}`, `{"dtype": "float32"}`,
`{"tensor": name}`, and `{"array": name}` for an array of NumPy.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Callable
from typing import Any

import torch

from ..errors import InputError

_LARGEST = 2**63 - 1
Tensors = dict[str, torch.Tensor]
Read = Callable[[str], torch.Tensor]


def encode(value: Any, name: str, tensors: Tensors) -> Any:
    """Returns a value as JSON. Its tensors are put into `tensors` under names like this one.

    Raises:
        InputError: A part of the value is of a kind that cannot be saved. The message names it.
    """
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return int(value) if abs(value) <= _LARGEST else {"int": str(int(value))}
    if isinstance(value, float):
        return {"float": repr(float(value))}
    if isinstance(value, torch.Tensor):
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return _encode_container(value, name, tensors)


def _encode_container(value: Any, name: str, tensors: Tensors) -> Any:
    if isinstance(value, dict):
        kind = "counter" if isinstance(value, collections.Counter) else "dict"
        pairs = [
            [encode(key, f"{name}.keys", tensors), encode(item, f"{name}.{key}", tensors)]
            for key, item in value.items()
        ]
        return {kind: pairs}
    if isinstance(value, (list, tuple)):
        items = [encode(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return items if isinstance(value, list) else {"tuple": items}
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)):
        try:
            tensors[name] = torch.from_numpy(numpy.ascontiguousarray(value).copy())
        except TypeError:
            pass
        else:
            tensors[name] = tensors[name].reshape(value.shape)
            return {"array": name}
    raise InputError(
        f"{name} is of the type {type(value).__name__}, which cannot be saved: a state has "
        "numbers, texts, bytes, tensors, arrays, and lists, tuples and dicts of them"
    )


def decode(value: Any, read: Read) -> Any:
    """Returns the value of its JSON form. `read` returns the tensor of a name."""
    if isinstance(value, list):
        return [decode(item, read) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, inside),) = value.items()
    if kind == "tensor":
        return read(inside)
    if kind == "array":
        return read(inside).numpy()
    if kind in ("dict", "counter"):
        pairs = {decode(key, read): decode(item, read) for key, item in inside}
        return pairs if kind == "dict" else collections.Counter(pairs)
    return _SCALARS[kind](inside, read)


_SCALARS: dict[str, Callable[[Any, Read], Any]] = {
    "float": lambda text, _: float(text),
    "int": lambda text, _: int(text),
    "bytes": lambda text, _: bytes.fromhex(text),
    "dtype": lambda text, _: getattr(torch, text),
    "tuple": lambda items, read: tuple(decode(item, read) for item in items),
}


def tensors_in(value: Any) -> list[str]:
    """Returns the names of all tensors that a JSON form names."""
    if isinstance(value, list):
        return [name for item in value for name in tensors_in(item)]
    if not isinstance(value, dict):
        return []
    found = [value[kind] for kind in ("tensor", "array") if isinstance(value.get(kind), str)]
    return found + [name for item in value.values() for name in tensors_in(item)]
