"""A plan as two graphs: forward and backward, with what runs again placed where the plan has it."""

from __future__ import annotations

import operator
from typing import Any

from torch import fx
from torch._functorch import partitioners
from torch.utils._ordered_set import OrderedSet

from .._planning.plan import Plan
from .joint import CALLER, Joint, is_view, op_values


def split(
    module: fx.GraphModule, joint: Joint, plan: Plan, *, static_inputs: list[int]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Returns the forward and the backward of a joint graph, as a plan orders them.

    The result follows the conventions of PyTorch's partition functions: the forward returns its
    outputs and what is saved, and the backward takes what is saved and the tangents.

    Args:
        module: The joint graph.
        joint: The same graph, taken apart.
        plan: The plan of `problem_of(joint, ...)`.
        static_inputs: The positions of the inputs that stay where they are from call to call.
    """
    unrolled = _Unrolled(joint)
    for action in plan.actions:
        if action.kind == "free":
            unrolled.free(action.id)
        elif action.id == CALLER:
            unrolled.end_forward()
        else:
            unrolled.run(action.id)
    graph, saved, placeholders = unrolled.finish(module)
    static = OrderedSet(placeholders[at] for at in static_inputs if at < len(placeholders))
    return partitioners._extract_fwd_bwd_modules(
        fx.GraphModule(module, graph),
        saved,
        saved_sym_nodes=[],
        num_fwd_outputs=len(joint.outputs),
        static_lifetime_input_nodes=static,
    )


class _Unrolled:
    """A joint graph with one node for every run of an op, in the order of a plan."""

    def __init__(self, joint: Joint) -> None:
        self._joint = joint
        self._ops = {node.name: node for node in joint.ops}
        self._graph = fx.Graph()
        self._copies: dict[fx.Node, fx.Node] = {}  # of placeholders and constants
        self._values: dict[str, fx.Node] = {}  # what holds a value now
        self._views: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = {}
        self._outputs: list[Any] = []
        self._gradients: list[Any] = []
        self._forward: set[fx.Node] = set()
        for node in (*joint.placeholders, *joint.constants):
            self._copies[node] = self._graph.node_copy(node)

    def run(self, id: str) -> None:
        node = self._ops[id]
        copy = self._graph.node_copy(node, self._now)
        if not isinstance(node.meta.get("val"), (tuple, list)):
            self._values[id] = copy
            return
        # The parts are taken at once, so that no part is held longer than the plan has it.
        for user in node.users:
            if user.target is operator.getitem:
                index = user.args[1]
                assert isinstance(index, int)
                value = op_values(node)[index]
                if value is not None:
                    part = self._graph.node_copy(user, lambda _: copy)
                    self._values[value] = part

    def free(self, value: str) -> None:
        self._values.pop(value, None)

    def end_forward(self) -> None:
        self._outputs = [self._now_or_constant(one) for one in self._joint.outputs]
        self._forward = set(self._graph.nodes)
        self._views.clear()  # The backward takes storages over, and makes its own views of them.

    def finish(self, module: fx.GraphModule) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
        self._gradients = [self._now_or_constant(one) for one in self._joint.gradients]
        output = self._graph.output(tuple(self._outputs + self._gradients))
        old = module.graph.output_node()
        output.meta = dict(old.meta)
        saved = [node for node in self._graph.nodes if self._crosses(node)]
        return self._graph, saved, [self._copies[node] for node in self._joint.placeholders]

    def _crosses(self, node: fx.Node) -> bool:
        if node not in self._forward or node.op == "get_attr":
            return False
        if node.op == "placeholder" and "tangents" in str(node.target):
            return False
        if any(user not in self._forward and user.op != "output" for user in node.users):
            return True
        return any(node is one for one in self._gradients)

    def _now_or_constant(self, one: Any) -> Any:
        return self._now(one) if isinstance(one, fx.Node) else one

    def _now(self, node: fx.Node) -> fx.Node:
        """Returns what holds the result of a node of the joint graph at this place of the plan."""
        if node in self._copies:
            return self._copies[node]
        if node not in self._joint.views:
            return self._values[node.name]
        source = node.args[0]
        if node.target is operator.getitem and isinstance(source, fx.Node) and not is_view(source):
            return self._values[self._joint.bases[node][0]]
        reads = tuple(self._now(read) for read in node.all_input_nodes)
        key = (node, reads)
        if key not in self._views:
            now = dict(zip(node.all_input_nodes, reads, strict=True))
            self._views[key] = self._graph.node_copy(node, now.__getitem__)
        return self._views[key]
