"""The backend of `torch.compile`: a planned split of the graph that PyTorch traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import fx

from .. import _core
from .._planning.arguments import Budget, checked_budget
from .._planning.graph import Graph
from .._planning.planning import plan
from .._planning.result import PlanResult
from ..errors import BudgetError, InputError
from .joint import problem_of, take_apart
from .node_costs import estimated_cost, measured_costs
from .split import split

_log = logging.getLogger("reprise")


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that the backend has planned.

    Attributes:
        problem: The graph as a problem. `reprise.report_html()` and `reprise.explain()` take it.
        result: The answer of the planner. `result.plan.peak_bytes` is the predicted peak: the
            graph's inputs, outputs and gradients, and everything between.
    """

    problem: Graph
    result: PlanResult


@dataclass(frozen=True)
class _Options:
    budget: Budget = None
    compiler: str = "aot_eager"
    times: str = "measured"
    fixed_bytes: int | str = 0
    time_limit: float | str = 10.0
    threads: int = 0
    observer: Callable[[CompiledGraph], None] | None = None
    inductor: dict[str, Any] | None = None


def backend(
    module: fx.GraphModule,
    inputs: list[Any],
    *,
    options: dict[str, Any] | None = None,
    **unknown: Any,
) -> Callable[..., Any]:
    """The backend `reprise` of `torch.compile`.

    `torch.compile(model, backend=reprise.backend, options={"budget": "8 GiB"})` trains the model
    inside a budget. PyTorch traces forward and backward as one graph. The planner decides which
    results are kept for the backward, and which are made again and when, also several times. A
    compiler that you name then compiles the two halves. An installed package also answers to the
    name: `backend="reprise"`.

    Args:
        module: The graph that PyTorch has traced. `torch.compile` gives it.
        inputs: Its inputs. `torch.compile` gives them.
        options: A dict with these keys, all of them optional:

            - `budget`: bytes, a text such as "8 GiB", or a share such as "60%" of the peak without
              recomputation. The budget holds what the graph takes (parameters, buffers, inputs),
              what it makes and what it returns (outputs, gradients), and `fixed_bytes`. Each graph
              has a budget of its own if `torch.compile` breaks the model into several.
            - `compiler`: "aot_eager" runs each half call by call, with the bits and the peak of the
              plan. "inductor" fuses calls and orders them anew: its peak differs from the plan's.
            - `times`: "measured" measures each call on its device. "estimated" takes bytes at 10
              GB/s and operations at 100 Gflop/s.
            - `fixed_bytes`: bytes or a text; what else is live during the step, such as the
              optimizer's state.
            - `time_limit`, `threads`: as in `reprise.plan()`.
            - `observer`: a function that is called with the `CompiledGraph` of each planned graph.
            - `inductor`: a dict of inductor's options.
        **unknown: Nothing else is taken.

    Returns:
        The compiled function, as `torch.compile` wants it.

    Raises:
        InputError: An option is unknown or wrong, or the graph has sizes that are not known.
        BudgetError: No plan fits the budget. The message names the smallest budget that has one.
        Inside
            `torch.compile` both arrive as the cause of `torch._dynamo.exc.BackendCompilerFailed`.

    Examples:
        >>> compiled = torch.compile(plain, backend=reprise.backend, options={"budget": "90%"})
    """
    if unknown:
        raise InputError(
            f"the backend reprise takes no {' or '.join(map(repr, sorted(unknown)))}; "
            "give options={...}"
        )
    chosen = _checked(options or {})
    if chosen.compiler == "inductor":
        return _with_inductor(module, inputs, chosen)
    return _with_aot_eager(module, inputs, chosen)


def _checked(options: dict[str, Any]) -> _Options:
    known = [field.name for field in fields(_Options)]
    for key in options:
        if key not in known:
            raise InputError(
                f'the backend reprise has no option "{key}"; it has {", ".join(known)}'
            )
    chosen = _Options(**options)
    checked_budget(chosen.budget)
    _bytes(chosen.fixed_bytes)
    for key, values in (
        ("compiler", ("aot_eager", "inductor")),
        ("times", ("measured", "estimated")),
    ):
        if getattr(chosen, key) not in values:
            raise InputError(
                f'the option "{key}" is {values[0]!r} or {values[1]!r}, '
                f"not {getattr(chosen, key)!r}"
            )
    return chosen


def _with_aot_eager(
    module: fx.GraphModule, inputs: list[Any], options: _Options
) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    compiler = aot_autograd(
        fw_compiler=boxed_nop,
        partition_fn=_partition_function(options),
        keep_inference_input_mutations=True,
    )
    return compiler(module, inputs)


def _with_inductor(
    module: fx.GraphModule, inputs: list[Any], options: _Options
) -> Callable[..., Any]:
    from torch._functorch import config as functorch
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Partitioner(CustomPartitionerFn):
        def __init__(self) -> None:
            self._partition = _partition_function(options)

        def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
            return self._partition(gm, joint_inputs, **kwargs)

        def uuid(self) -> None:
            return None

    # A plan depends on times and on the budget: PyTorch's caches of compiled graphs do not know
    # them.
    patches = {
        **(options.inductor or {}),
        "custom_partitioner_fn": Partitioner(),
        "fx_graph_cache": False,
    }
    with functorch.patch(enable_autograd_cache=False):
        compiled: Any = compile_fx(module, inputs, config_patches=patches)
    return compiled  # type: ignore[no-any-return]


def _partition_function(options: _Options) -> Callable[..., tuple[fx.GraphModule, fx.GraphModule]]:
    """Returns the function that PyTorch calls with a joint graph, for its forward and backward."""
    costs = measured_costs() if options.times == "measured" else estimated_cost

    def partition(
        joint_module: fx.GraphModule,
        _joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = take_apart(joint_module, num_fwd_outputs)
        problem = problem_of(joint, costs, name=_name(), fixed_bytes=_bytes(options.fixed_bytes))
        result = plan(
            problem,
            budget=options.budget,
            time_limit=options.time_limit,
            threads=options.threads,
        )
        if options.observer is not None:
            options.observer(CompiledGraph(problem, result))
        if result.plan is None:
            raise BudgetError(
                _refusal(problem, result),
                budget=result.budget_bytes or 0,
                requested=result.smallest_budget_bytes or 0,
            )
        _log.info("%s: %r", problem.name, result)
        return split(
            joint_module, joint, result.plan, static_inputs=static_lifetime_input_indices or []
        )

    return partition


def _name() -> str:
    context = torch._guards.CompileContext.try_get()
    return f"graph {context.compile_id}" if context is not None else "graph"


def _bytes(given: int | str) -> int:
    """Returns the option `fixed_bytes` in bytes."""
    if isinstance(given, str):
        return _core.parse_bytes(given)
    if isinstance(given, int) and not isinstance(given, bool) and 0 <= given < 2**63:
        return given
    raise InputError(
        f'the option "fixed_bytes" is a number of bytes or a text such as "2 GiB", not {given!r}'
    )


def _refusal(problem: Graph, result: PlanResult) -> str:
    known = result.smallest_budget_bytes
    smallest = (
        "" if known is None else f"; the smallest budget is {_core.format_bytes(known)} ({known} B)"
    )
    return (
        f"{problem.name}: no plan fits a budget of "
        f"{_core.format_bytes(result.budget_bytes or 0)}{smallest}; "
        f"without recomputation the graph takes {_core.format_bytes(result.baseline.peak_bytes)}"
    )
