"""Problems and plans in all forms that users may hand over."""

from __future__ import annotations

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
