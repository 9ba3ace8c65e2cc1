"""The backend of `torch.compile` and the advice to PyTorch's partitioner share these functions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from .. import _core
from .._planning.graph import Graph
from .._planning.result import PlanResult
from ..errors import InputError
from .joint import NodeCost
from .node_costs import estimated_cost, measured_costs


def costs_of(times: str) -> Callable[[fx.Node], NodeCost]:
    """Returns the costs of calls that the option `times` asks for."""
    if times == "measured":
        return measured_costs()
    if times == "estimated":
        return estimated_cost
    raise InputError(f"the option \"times\" is 'measured' or 'estimated', not {times!r}")


def bytes_of(given: int | str, option: str = "fixed_bytes") -> int:
    """Returns an option that is a number of bytes or a text."""
    if isinstance(given, str):
        return _core.parse_bytes(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**63:
        return given
    raise InputError(
        f'the option "{option}" is a number of bytes or a text such as "2 GiB", not {given!r}'
    )


def name_of_graph() -> str:
    """Returns a name for the graph that is compiled now."""
    context = torch._guards.CompileContext.try_get()
    return f"graph {context.compile_id}" if context is not None else "graph"


def refusal(problem: Graph, result: PlanResult, smallest: int | None, margin: int = 0) -> str:
    """Returns the message for a budget that nothing fits.

    Args:
        problem: The problem.
        result: The answer of the planner for that budget.
        smallest: The smallest budget that is known to be possible, or None.
        margin: Bytes of the budget that the planner was not given.
    """
    known = (
        ""
        if smallest is None
        else f"; the smallest budget is {_core.format_bytes(smallest)} ({smallest} B)"
    )
    free = f" with a margin of {_core.format_bytes(margin)}" if margin > 0 else ""
    return (
        f"{problem.name}: no plan fits a budget of "
        f"{_core.format_bytes((result.budget_bytes or 0) + margin)}{free}{known}; "
        f"without recomputation the graph takes {_core.format_bytes(result.baseline.peak_bytes)}"
    )
