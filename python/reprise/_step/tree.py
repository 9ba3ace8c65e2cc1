"""Nested Python values as lists of tensors, and back.

The containers are tuples, lists, dicts and dataclasses.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import InputError
from .returned import ReturnedNumber

# Two values of one of these types are interchangeable if they are equal.
SIMPLE = (
    type(None), bool, int, float, complex, str, bytes, slice, type(...), enum.Enum,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def is_simple(value: Any) -> bool:
    """Says whether a value is a number, a text or the like, whose content is all that it is."""
    return isinstance(value, (*SIMPLE, range, torch.Size, frozenset))


@dataclass(frozen=True)
class Tree:
    """The structure of a value. Two values with equal trees differ in their tensors only.

    Attributes:
        kind: The type of a container, or None for a leaf.
        keys: The keys, field names or positions of a container's items.
        children: The structures of a container's items.
        constant: The type and the value of a leaf that is no tensor, or None for a tensor.
        is_number: Whether the leaf is a number that is read out of its tensor.
    """

    kind: Any
    keys: tuple[Any, ...] = ()
    children: tuple[Tree, ...] = ()
    constant: tuple[Any, ...] | None = None
    is_number: bool = False

    def constants(self) -> list[Any]:
        """Returns all leaves that are neither tensors nor None."""
        own = [] if self.constant is None or self.constant[1] is None else [self.constant[1]]
        return own + [value for child in self.children for value in child.constants()]

    def has_numbers(self) -> bool:
        """Says whether some leaf is a number that is read out of its tensor."""
        return self.is_number or any(child.has_numbers() for child in self.children)


TENSOR = Tree(None)
NUMBER = Tree(None, is_number=True)


def flatten(value: Any, what: str) -> tuple[list[torch.Tensor], Tree]:
    """Takes a value apart.

    Args:
        value: Tensors and simple values in any nesting of containers.
        what: The name of the value in messages.

    Returns:
        The tensors of the value in their order, and its structure.

    Raises:
        InputError: The value holds an object that cannot be taken apart and put together again.
    """
    tensors: list[torch.Tensor] = []
    return tensors, _take_apart(value, what, tensors)


def _take_apart(value: Any, what: str, tensors: list[torch.Tensor]) -> Tree:
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return TENSOR
    if type(value) is ReturnedNumber:
        tensors.append(value.tensor)
        return NUMBER
    if isinstance(value, SIMPLE):
        return Tree(None, constant=(type(value), value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value) if f.init]
        fields: list[tuple[Any, Any]] = [(name, getattr(value, name)) for name in names]
    elif isinstance(value, Mapping):
        fields = list(value.items())
    elif isinstance(value, (tuple, list)):
        fields = list(enumerate(value))
    else:
        raise InputError(
            f"{what} holds an object of type {type(value).__module__}.{type(value).__qualname__}; "
            "what can be handed over are tensors, numbers and texts, in tuples, lists, dicts and "
            "dataclasses"
        )
    children = tuple(_take_apart(item, f"{what}[{key!r}]", tensors) for key, item in fields)
    return Tree(type(value), tuple(key for key, _ in fields), children)


def rebuild(tree: Tree, tensors: list[torch.Tensor]) -> Any:
    """Puts a value of this structure together from these tensors.

    Raises:
        InputError: There are more tensors than the structure has.
    """
    rest = iter(tensors)
    value = _put_together(tree, rest)
    if next(rest, None) is not None:
        raise InputError("the structure of a value has changed: it holds more tensors than before")
    return value


def _put_together(tree: Tree, tensors: Iterator[torch.Tensor]) -> Any:
    if tree.is_number:
        return next(tensors).item()
    if tree.kind is None:
        return next(tensors) if tree.constant is None else tree.constant[1]
    items = [_put_together(child, tensors) for child in tree.children]
    make = tree.kind
    if hasattr(make, "__dataclass_fields__"):
        return make(**dict(zip(tree.keys, items, strict=True)))
    if issubclass(make, Mapping):
        return make(zip(tree.keys, items, strict=True))
    if hasattr(make, "_fields"):  # a named tuple
        return make(*items)
    return make(items)


def without_history(result: Any) -> Any:
    """Returns what a step returns, with tensors that have no history, as a captured step does."""
    try:
        tensors, tree = flatten(result, "what the step returns")
    except InputError:  # Objects of the user's own are returned as they are.
        return result
    if not any(tensor.requires_grad for tensor in tensors):
        return result
    return rebuild(tree, [tensor.detach() for tensor in tensors])
