"""Keyword arguments of the user's function, told from options that have gone astray."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import InputError


def refuse_astray(
    function: Callable[..., Any], keywords: Mapping[str, Any], owners: Mapping[str, Any]
) -> None:
    """Refuses a keyword that the user's function does not take and that is an option elsewhere.

    Args:
        function: The user's function.
        keywords: The keyword arguments that it would be called with.
        owners: Functions of Reprise, by the names by which a user calls them.

    Raises:
        InputError: There is such a keyword. The message says whose option it is.
    """
    if not keywords:
        return
    try:
        taken = inspect.signature(function).parameters
    except (TypeError, ValueError):  # A function written in C may have no signature.
        return
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in taken.values()):
        return
    for name in keywords:
        if name in taken:
            continue
        having = [
            place for place, owner in owners.items() if name in inspect.signature(owner).parameters
        ]
        if having:
            raise InputError(
                f"{name}= is an option of {' and '.join(having)}, and neither an option here nor "
                "an argument of the function of the step"
            )
