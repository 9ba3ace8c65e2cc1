"""The random generators that all of Python shares."""

from __future__ import annotations

import random
import sys
from typing import Any


def shared_generators() -> dict[str, Any]:
    """Returns the states of the generators that all of Python's and NumPy's functions share."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *rest)
    return states


def put_back(state_of_random: Any, state_of_numpy: Any) -> None:
    random.setstate(state_of_random)
    if state_of_numpy is not None:
        sys.modules["numpy"].random.set_state(state_of_numpy)
