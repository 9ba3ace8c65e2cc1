"""The frontier of a problem or of a model: the best time of every budget."""

from __future__ import annotations

import json
from typing import Any

from .. import _core
from .._planning.arguments import Observer, native_options, options_of
from .._planning.curve import Frontier
from .._planning.plan import Baseline
from .._planning.problems import MachineLike, text_of
from .._planning.records import decode
from ..errors import InputError


def frontier(
    problem: Any,
    sample: Any = None,
    *,
    planner: str = "",
    schedule_class: str = "",
    time_limit: float | str = 60.0,
    threads: int = 0,
    allow: str = "bitwise",
    machine: MachineLike | None = None,
    observer: Observer | None = None,
    loss: Any = None,
) -> Frontier:
    """Finds the best time of every budget.

    A graph, a problem on a `machine`, or a chain whose whole curve takes too long is planned at
    single budgets instead. Between two points of such a frontier, a plan with a time between theirs
    may exist.

    Args:
        problem: A problem, as for `plan()`; or, with a `sample`, a model, as for `remat()`. A model
            is measured first.
        sample: An input of the model, or a tuple of its inputs.
        planner, schedule_class, time_limit, threads, allow: As for `plan()`.
        machine: As for `plan()`. Every planner that moves values has a frontier then.
        observer: As for `plan()`.
        loss: The loss of the model, as for `remat()`.

    Raises:
        InputError: The problem or another argument is wrong, or there is a `loss` without a
            `sample`.

    Examples:
        >>> curve = reprise.frontier(chain)
        >>> picture = curve.svg(marks=("60%",))
        >>> moving = reprise.frontier(
        ...     chain, machine=reprise.parse_offload("host=12GB/s"), time_limit=1
        ... )
        >>> picture = moving.svg(compared={"recomputing alone": curve})
    """
    if sample is not None:
        from .. import _torch  # noqa: F401 - It says what is missing before anything else fails.
        from .profiling import profile

        problem = profile(problem, sample, loss=loss, observer=observer)
    elif loss is not None:
        raise InputError("`loss` belongs to a model, which needs a `sample` input")
    text, name = text_of(problem, "problem")
    options = options_of(frontier, locals())
    del options["loss"]
    found, baseline = _core.frontier(text, name, **native_options(options))
    curve: Frontier = decode(Frontier, json.loads(found))
    object.__setattr__(curve, "baseline", Baseline(*baseline))
    return curve
