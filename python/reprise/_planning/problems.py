"""Problems and plans in all forms that users may hand over."""

from __future__ import annotations

import json
import os
from typing import Any

from .. import _core
from ..errors import InputError
from .chain import Chain
from .document import Document, Path, dumps
from .graph import Graph
from .measured import Profile
from .plan import Plan

# A problem is the path of a file, its JSON form as a dict, or a value.
Problem = Path | dict[str, Any] | Chain | Graph | Profile
# A plan is the path of a file, its JSON form as a dict, or a value.
PlanLike = Path | dict[str, Any] | Plan


# The memories and channels that values may move on: a path, or the JSON form as a dict.
MachineLike = Path | dict[str, Any]


def parse_offload(text: str) -> dict[str, Any]:
    """Returns the machine that a text such as "host=12GB/s" stands for.

    The machine has the device and one memory more, with a channel out of the device and one back.
    Two numbers, as in "disk=1.1GB/s,0.65GB/s", are the bandwidths out and back.

    Args:
        text: The name of the memory and the bandwidths.

    Returns:
        A dict in the form of `reprise.machine` files, for the arguments `machine` of `plan()`,
        `frontier()`, `verify()` and others.

    Raises:
        InputError: The text has another form.

    Examples:
        >>> reprise.parse_offload("host=12GB/s")["memories"][1]["name"]
        'host'
    """
    machine: dict[str, Any] = json.loads(_core.parse_offload(text))
    return machine


def machine_text(machine: MachineLike | None) -> str | None:
    """Returns the JSON text of a machine, or None for none."""
    return None if machine is None else text_of(machine, "machine")[0]


def text_of(value: Any, kind: str) -> tuple[str, str]:
    """Returns the JSON text of a problem or plan, and its name in messages.

    Args:
        value: A path, a dict or a value.
        kind: "problem", "plan" or "machine".

    Raises:
        InputError: The value has none of these forms, or its file cannot be read.
    """
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        return _core.read_file(path), path
    if isinstance(value, dict):
        return dumps(value), "<dict>"
    if isinstance(value, Document):
        return value.text(), f"<{type(value).__name__}>"
    if kind == "plan" and value is None:
        raise InputError(
            "there is no plan: where no budget fits, PlanResult.plan is None, and "
            "smallest_budget_bytes says what is possible"
        )
    hint = "; of a model, give a sample, too" if kind == "problem" and callable(value) else ""
    raise InputError(
        f"a {kind} is a path, a dict or a value of this package, not a {type(value).__name__}{hint}"
    )
