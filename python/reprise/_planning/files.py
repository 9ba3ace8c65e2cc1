"""Reading a file of any of the project's formats."""

from __future__ import annotations

import json
import os
from typing import Any

from .. import _core
from .chain import Chain
from .curve import Frontier
from .document import Document, Path
from .graph import Graph
from .measured import Profile, RunLog
from .plan import Plan

DOCUMENTS: dict[str, type[Document]] = {
    kind.FORMAT: kind for kind in (Chain, Graph, Plan, Frontier, Profile, RunLog)
}


def load(path: Path) -> Any:
    """Reads a chain, graph, profile, plan, frontier or run log from its file.

    The key "format" of the file says which of them it is.

    Args:
        path: The path of the file.

    Returns:
        A `Chain`, `Graph`, `Profile`, `Plan`, `Frontier` or `RunLog`.

    Raises:
        InputError: The file cannot be read, or it is not legal. The exception has the file, the
            JSON pointer and the line.

    Examples:
        >>> chain = reprise.load("data/instances/chains/resnet18_like.json")
    """
    name = os.fspath(path)
    text = _core.read_file(name)
    try:
        found = json.loads(text)
        kind = DOCUMENTS.get(found.get("format", "")) if isinstance(found, dict) else None
    except ValueError:
        kind = None
    # A text without a known format is read as a chain: the strict reader says what is wrong.
    return (kind or Chain).from_json(text, name)
