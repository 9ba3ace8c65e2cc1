"""The backend of `torch.compile`: a planned split of the graph that PyTorch traces."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import fx

from .. import _core
from .._planning.arguments import Budget, checked_budget
from .._planning.graph import Graph
from .._planning.planning import plan
from .._planning.result import PlanResult
from ..errors import BudgetError, InputError
from .joint import problem_of, take_apart
from .request import bytes_of, costs_of, name_of_graph, refusal
from .split import split
from .trial import measured_peak

_log = logging.getLogger("reprise")

MEASURED = "measured"
# A compiled graph is planned at most so often: the margin that one plan needed can be too small for
# the next one, because the compiler orders its calls in another way.
_ROUNDS = 4
# A smaller part of the budget that stays free is not worth another compilation.
_WORTHWHILE = 0.02


@dataclass(frozen=True)
class CompiledGraph:
    """A graph that the backend has planned.

    Attributes:
        problem: The graph as a problem. `reprise.report_html()` and `reprise.explain()` take it.
        result: The answer of the planner. `result.plan.peak_bytes` is the predicted peak: the
            graph's inputs, outputs and gradients, and everything between.
        measured_peak_bytes: The same peak as measured in a run of the compiled graph, or None.
            It is measured with the option `margin="measured"`.
    """

    problem: Graph
    result: PlanResult
    measured_peak_bytes: int | None = None


@dataclass(frozen=True)
class _Options:
    budget: Budget = None
    compiler: str = "aot_eager"
    times: str = "measured"
    fixed_bytes: int | str = 0
    margin: int | str = 0
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
            - `margin`: bytes of the budget that the plan leaves free, for a compiler that orders
              calls anew. It is a number, a text, or "measured": then the compiled graph runs on
              operands of its own, and is planned and compiled again, four times at most, with what
              it took more or less than the budget. If no plan fits, the plan with the smallest peak
              is compiled, because fused calls may take less. The first call takes so much longer.
            - `time_limit`, `threads`: as in `reprise.plan()`.
            - `observer`: a function that is called with the `CompiledGraph` of each planned graph.
            - `inductor`: a dict of inductor's options.
        **unknown: Nothing else is taken.

    Returns:
        The compiled function, as `torch.compile` wants it.

    Raises:
        InputError: An option is unknown or wrong, or the graph has sizes that are not known.
        BudgetError: No plan fits the budget. The message names the smallest budget that has one.
            Inside `torch.compile` both arrive as the cause of
            `torch._dynamo.exc.BackendCompilerFailed`.

    Examples:
        >>> compiled = torch.compile(plain, backend=reprise.backend, options={"budget": "90%"})
    """
    if unknown:
        raise InputError(
            f"the backend reprise takes no {' or '.join(map(repr, sorted(unknown)))}; "
            "give options={...}"
        )
    return _compiled(module, inputs, _checked(options or {}))


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
    if chosen.margin != MEASURED:
        bytes_of(chosen.margin, "margin")
    costs_of(chosen.times)
    if chosen.compiler not in ("aot_eager", "inductor"):
        raise InputError(
            f"the option \"compiler\" is 'aot_eager' or 'inductor', not {chosen.compiler!r}"
        )
    return chosen


def _compiled(module: fx.GraphModule, inputs: list[Any], options: _Options) -> Callable[..., Any]:
    """Plans and compiles the graph, with a measured margin several times."""
    partition = Partition(options)
    compile = _with_inductor if options.compiler == "inductor" else _with_aot_eager
    if options.margin == MEASURED:
        compile = _at_once(compile)
    fitting: tuple[Callable[..., Any], CompiledGraph] | None = None
    for _ in range(_ROUNDS):
        compiled = compile(module, inputs, partition, options)
        planned = partition.planned
        if planned is None:  # There is no backward, so there was nothing to plan.
            return compiled
        if options.margin != MEASURED:
            fitting = (compiled, planned)
            break
        peak = measured_peak(compiled, inputs) + bytes_of(options.fixed_bytes)
        above = partition.above(peak)
        if above <= 0:
            fitting = (compiled, replace(planned, measured_peak_bytes=peak))
        elif fitting is not None:
            break
        if not partition.change_margin(above):
            break
    if fitting is None:
        raise partition.misfit(peak)
    compiled, planned = fitting
    if options.observer is not None:
        options.observer(planned)
    _log.info("%s: %r", planned.problem.name, planned.result)
    return compiled


def _at_once(compile: Callable[..., Any]) -> Callable[..., Any]:
    """Lets a compiler compile the backward at once, on a copy of the module.

    PyTorch compiles a backward when the backward first runs. This run must not lie inside of
    another compilation.
    """
    from torch._functorch import config as functorch

    def copied(module: fx.GraphModule, *rest: Any) -> Any:
        with functorch.patch(force_non_lazy_backward_lowering=True):
            return compile(_copy(module), *rest)

    return copied


def _copy(module: fx.GraphModule) -> fx.GraphModule:
    """Returns the module with a graph of its own, because compilers change graphs in place."""
    copied = fx.GraphModule(module, copy.deepcopy(module.graph))
    _complete(copied, module)
    for node, original in zip(copied.graph.nodes, module.graph.nodes, strict=True):
        _complete(node, original)
    return copied


def _complete(copied: Any, original: Any) -> None:
    """Gives a copy the attributes that PyTorch's tracer has added to the original."""
    for name, value in vars(original).items():
        vars(copied).setdefault(name, value)


def _with_aot_eager(
    module: fx.GraphModule, inputs: list[Any], partition: Partition, _: _Options
) -> Callable[..., Any]:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    compiler = aot_autograd(
        fw_compiler=boxed_nop, partition_fn=partition, keep_inference_input_mutations=True
    )
    return compiler(module, inputs)


def _with_inductor(
    module: fx.GraphModule, inputs: list[Any], partition: Partition, options: _Options
) -> Callable[..., Any]:
    from torch._functorch import config as functorch
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    class Partitioner(CustomPartitionerFn):
        def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> Any:
            return partition(gm, joint_inputs, **kwargs)

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


class Partition:
    """The function that PyTorch calls with a joint graph, for its forward and backward.

    Attributes:
        planned: The graph that it has planned last, or None.
    """

    def __init__(self, options: _Options) -> None:
        self.planned: CompiledGraph | None = None
        self._options = options
        self._costs = costs_of(options.times)
        self._limit: int | None = None  # the budget in bytes, once it is known
        self._margin = 0 if options.margin == MEASURED else bytes_of(options.margin, "margin")
        self._at_smallest = False  # whether no plan has a smaller peak than the last one

    def __call__(
        self,
        joint_module: fx.GraphModule,
        _joint_inputs: Any,
        *,
        num_fwd_outputs: int,
        static_lifetime_input_indices: list[int] | None = None,
        **_: Any,
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        joint = take_apart(joint_module, num_fwd_outputs)
        fixed = bytes_of(self._options.fixed_bytes)
        problem = problem_of(joint, self._costs, name=name_of_graph(), fixed_bytes=fixed)
        self.planned = CompiledGraph(problem, self._plan(problem))
        found = self.planned.result.plan
        if found is None:
            if self._options.observer is not None:
                self._options.observer(self.planned)
            raise self._refusal(self.planned)
        return split(joint_module, joint, found, static_inputs=static_lifetime_input_indices or [])

    def above(self, peak: int) -> int:
        """Returns the bytes that a measured peak is above the budget."""
        return 0 if self._limit is None else peak - self._limit

    def change_margin(self, above: int) -> bool:
        """Adds bytes, also less than 0, to the margin. Returns whether another plan may be better.

        A compiler that fuses calls may need less than the plan says. Then the next plan gets more.
        """
        assert self.planned is not None
        if self._limit is None or (above > 0 and self._at_smallest):
            return False
        recomputes = self._limit - self._margin < self.planned.result.baseline.peak_bytes
        if above <= 0 and (not recomputes or -above < _WORTHWHILE * self._limit):
            return False
        self._margin += above
        return True

    def misfit(self, peak: int) -> BudgetError:
        """Returns the error for a compiled graph that takes too much with every margin."""
        assert self.planned is not None and self._limit is not None
        tried = (
            "no plan is predicted to take less"
            if self._at_smallest
            else f"{_ROUNDS} plans with growing margins did not fit"
        )
        return BudgetError(
            f"{self.planned.problem.name}: compiled by {self._options.compiler}, the graph took "
            f"{_core.format_bytes(peak)} in a run, and the budget is "
            f"{_core.format_bytes(self._limit)}; {tried}",
            budget=self._limit,
            requested=peak,
        )

    def _refusal(self, planned: CompiledGraph) -> BudgetError:
        """Returns the error for a budget that nothing fits."""
        smallest = planned.result.smallest_budget_bytes
        if smallest is not None:
            smallest += self._margin
        return BudgetError(
            refusal(planned.problem, planned.result, smallest, self._margin),
            budget=self._limit or 0,
            requested=smallest or 0,
        )

    def _plan(self, problem: Graph) -> PlanResult:
        options = self._options
        given: dict[str, Any] = {"time_limit": options.time_limit, "threads": options.threads}
        first = self._limit is None
        if first:
            result = plan(problem, budget=options.budget, **given)
            self._limit = result.budget_bytes
        if self._limit is None:
            return result
        if not first or self._margin:
            result = plan(problem, budget=max(1, self._limit - self._margin), **given)
        smallest = result.smallest_budget_bytes
        if result.plan is not None or options.margin != MEASURED or smallest is None:
            return result
        # A compiler that fuses calls may need less than this plan says. The measurement decides.
        self._margin, self._at_smallest = self._limit - smallest, True
        return plan(problem, budget=smallest, **given)
