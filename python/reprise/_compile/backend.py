"""The backend of `torch.compile`: a planned split of the graph that PyTorch traces."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from torch import fx

from .._planning.arguments import Budget, checked_budget
from .._planning.graph import Graph
from .._planning.planning import plan
from .._planning.result import PlanResult
from ..errors import BudgetError, InputError
from .joint import problem_of, take_apart
from .request import bytes_of, costs_of, name_of_graph, refusal
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
    bytes_of(chosen.fixed_bytes)
    costs_of(chosen.times)
    if chosen.compiler not in ("aot_eager", "inductor"):
        raise InputError(
            f"the option \"compiler\" is 'aot_eager' or 'inductor', not {chosen.compiler!r}"
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
    costs = costs_of(options.times)
    fixed = bytes_of(options.fixed_bytes)

    def partition(
        joint_module: fx.GraphModule,
        _joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = take_apart(joint_module, num_fwd_outputs)
        problem = problem_of(joint, costs, name=name_of_graph(), fixed_bytes=fixed)
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
                refusal(problem, result, result.smallest_budget_bytes),
                budget=result.budget_bytes or 0,
                requested=result.smallest_budget_bytes or 0,
            )
        _log.info("%s: %r", problem.name, result)
        return split(
            joint_module, joint, result.plan, static_inputs=static_lifetime_input_indices or []
        )

    return partition
