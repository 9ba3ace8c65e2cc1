"""Advice to PyTorch's own partitioner: which results it saves, by tags on the joint graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._functorch import config as functorch
from torch._functorch._aot_autograd import descriptors
from torch._functorch.compile_utils import fx_graph_cse
from torch.utils import _pytree as pytree

from .._planning.arguments import Budget, checked_budget, nanoseconds
from .._planning.graph import Graph
from .._planning.plan import Plan
from ..errors import InputError
from .joint import problem_of, take_apart
from .request import bytes_of, costs_of, name_of_graph
from .stock import Stock
from .stock_search import search_split

# Results of a joint graph that belong to its backward, beside the gradients.
_OF_THE_BACKWARD = (
    descriptors.BackwardTokenAOTOutput,
    descriptors.PhiloxUpdatedBackwardOffsetAOTOutput,
)


@dataclass(frozen=True)
class AdvisedGraph:
    """A graph whose nodes `compile_advice()` has tagged.

    Attributes:
        problem: The graph as a problem. `reprise.report_html()` and `reprise.explain()` take it.
        plan: What PyTorch's partitioner makes of the tags, as a plan. `plan.peak_bytes` is the
            predicted peak.
        saved: The ops whose results the forward saves for the backward.
        again: The ops that the backward runs again.
    """

    problem: Graph
    plan: Plan
    saved: tuple[str, ...]
    again: tuple[str, ...]


@contextlib.contextmanager
def compile_advice(
    *,
    budget: Budget = None,
    times: str = "measured",
    fixed_bytes: int | str = 0,
    time_limit: float | str = 10.0,
    threads: int = 0,
    observer: Callable[[AdvisedGraph], None] | None = None,
) -> Iterator[None]:
    """Tells PyTorch's own partitioner what to save, for all that `torch.compile` compiles inside.

    This is for code that has to keep its backend and PyTorch's partitioner. The backend
    `reprise.backend` reaches smaller budgets, because it may make a result several times and where
    it likes. PyTorch's partitioner makes each result once more at most.

    PyTorch compiles at the first call, so the first call belongs inside. Later calls need no
    context. The tags replace those of `torch.utils.checkpoint` inside the graph, and
    `activation_memory_budget` is not looked at.

    Args:
        budget: Bytes, a text such as "8 GiB", or a share such as "60%" of the peak without
            recomputation. It holds what the option `budget` of `reprise.backend` holds.
        times: "measured" or "estimated", as for `reprise.backend`.
        fixed_bytes: As for `reprise.backend`.
        time_limit: Seconds for the search in each graph, or a text such as "10s".
        threads: As in `reprise.plan()`.
        observer: A function that is called with the `AdvisedGraph` of each graph.

    Raises:
        InputError: An argument is wrong, or a graph has sizes that are not known.
        BudgetError: No choice of saved results was found that fits the budget. The message names
            the smallest peak that was found. Inside `torch.compile` both arrive as the cause of
            `torch._dynamo.exc.BackendCompilerFailed`.

    Examples:
        >>> with reprise.compile_advice(budget="90%"):
        ...     loss = torch.compile(plain, backend="aot_eager")(x)
    """
    costs = costs_of(times)
    checked_budget(budget)
    fixed = bytes_of(fixed_bytes)
    nanoseconds(time_limit)
    own: Callable[[fx.GraphModule, Any], fx.GraphModule] | None = functorch.joint_custom_pass

    def advise(module: fx.GraphModule, inputs: Any) -> fx.GraphModule:
        if own is not None:
            module = own(module, inputs)
        if functorch.cse:  # The partitioner does so, too: the plan is for the graph that it sees.
            module.graph.eliminate_dead_code()
            module.graph = fx_graph_cse(module.graph)
            module.recompile()
        joint = take_apart(module, _forward_outputs(module.graph))
        if not joint.tangents:
            return module  # Nothing is saved for a backward that reads no gradient.
        problem = problem_of(joint, costs, name=name_of_graph(), fixed_bytes=fixed)
        stock = Stock(module.graph, joint, problem)
        found, plan = search_split(stock, problem, budget, time_limit, threads)
        stock.tag(found)
        if observer is not None:
            ids = [op.id for op in problem.ops]
            saved = {node.name for node in found.saved}
            observer(
                AdvisedGraph(
                    problem,
                    plan,
                    tuple(id for id in ids if id in saved),
                    tuple(id for id in ids if id in found.again),
                )
            )
        return module

    # PyTorch's cache of compiled graphs does not know the plan, and its knob can overrule the tags.
    with functorch.patch(
        joint_custom_pass=advise, enable_autograd_cache=False, activation_memory_budget=1.0
    ):
        yield


def _forward_outputs(graph: fx.Graph) -> int:
    """Returns how many of the outputs of a joint graph the forward returns. They come first."""
    described = pytree.tree_leaves(graph.output_node().meta.get("desc", ()))
    for at, one in enumerate(described):
        if one is not None and (one.is_grad() or isinstance(one, _OF_THE_BACKWARD)):
            return at
    raise InputError(
        "PyTorch does not say which results of the joint graph are gradients; use the backend "
        "reprise"
    )
