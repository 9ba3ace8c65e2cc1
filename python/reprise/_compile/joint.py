"""The joint graph that `torch.compile` traces, as a problem for a planner.

PyTorch traces forward and backward into one graph of calls without in-place writes (AOTAutograd).
`problem_of()` turns that graph into a `Graph`. The bytes of a storage are one value. A call that
makes storages is one op. A view takes no bytes and no time: it is made where an op reads it.
Between the last op of the forward and the first op of the backward lies the op `caller`: it stands
for the program, which takes the outputs and brings the gradients.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from .._planning.graph import Graph, Op, Value, Variant
from ..errors import InputError

CALLER = "caller"
"""The id of the op that stands for the program between forward and backward."""

# From PyTorch 2.13 on, a compiled backward frees the gradients that it is given. Before, they live
# to its end.
_FREES_TANGENTS = hasattr(torch.autograd.Function, "boxed_grads_call")

# Allocators hand out whole blocks: Reprise's counting one for the CPU, and PyTorch's caching one
# for CUDA.
_BLOCK_BYTES = {"cpu": 64, "cuda": 512}

# These calls return views by what they do. Their schemas do not say so.
_VIEWS = {
    torch.ops.aten._unsafe_view.default,
    torch.ops.aten._reshape_alias.default,
}

# These calls are marked as random. They draw numbers only if the argument `dropout_p` is not zero.
_ATTENTION = "_scaled_dot_product_"


@dataclass(frozen=True)
class NodeCost:
    """The cost of one call.

    Attributes:
        ns: The time of the call in nanoseconds.
        workspace_bytes: The bytes that the call takes beyond its operands and its results.
    """

    ns: int
    workspace_bytes: int = 0


@dataclass(frozen=True)
class Joint:
    """A joint graph, taken apart.

    Attributes:
        placeholders: The inputs of the graph.
        constants: The nodes that read attributes of the graph's module.
        ops: The nodes that make storages or have effects, in the order of plain training, without
            the op `caller`.
        forward: How many of `ops` run before `caller`.
        views: The nodes that return views of storages that others made, among them the nodes that
            take one result of a call.
        bases: The ids of the values that a node's storages are, for every node.
        outputs: The results of the forward. Entries are nodes, or constants such as None.
        gradients: The results of the backward.
        tangents: The placeholders that the program fills after the forward.
        backward: The nodes that depend on a tangent.
    """

    placeholders: tuple[fx.Node, ...]
    constants: tuple[fx.Node, ...]
    ops: tuple[fx.Node, ...]
    forward: int
    views: frozenset[fx.Node]
    bases: dict[fx.Node, tuple[str, ...]]
    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]
    tangents: tuple[fx.Node, ...]
    backward: frozenset[fx.Node]


def tensors_of(node: fx.Node) -> list[torch.Tensor]:
    """Returns the (fake) tensors that a node's call returns."""
    found = pytree.tree_leaves(node.meta.get("val"))
    return [one for one in found if isinstance(one, torch.Tensor)]


def storage_bytes(tensor: torch.Tensor) -> int:
    """Returns the bytes that the storage of a tensor takes, in whole blocks of its allocator."""
    block = _BLOCK_BYTES.get(tensor.device.type, 1)
    return -(-int(tensor.untyped_storage().nbytes()) // block) * block


def is_view(node: fx.Node) -> bool:
    """Returns whether a node's call makes no storage: a view, or one part of several results."""
    target = node.target
    if target is operator.getitem:
        return True
    if target in _VIEWS:
        return True
    return isinstance(target, torch._ops.OpOverload) and bool(target.is_view)


def writes(node: fx.Node) -> bool:
    """Returns whether a node's call writes one of its operands."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and bool(target._schema.is_mutable)


def is_random(node: fx.Node) -> bool:
    """Returns whether a node's call draws random numbers."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return False
    if target._schema.name.startswith(f"aten::{_ATTENTION}"):
        for argument, value in zip(target._schema.arguments, node.args, strict=False):
            if argument.name == "dropout_p":
                return bool(value != 0.0)
        return bool(node.kwargs.get("dropout_p", 0.0) != 0.0)
    return True


def runs_once(node: fx.Node) -> bool:
    """Returns whether a node's call may not run again.

    A call runs once if it draws random numbers, writes an operand, communicates, runs a graph of
    its own, or is an operator that PyTorch does not know to be free of effects.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    if target.namespace not in ("aten", "prims"):
        return True
    return writes(node) or is_random(node) or torch.Tag.nondeterministic_bitwise in target.tags


def take_apart(module: fx.GraphModule, outputs: int) -> Joint:
    """Takes a joint graph apart.

    Args:
        module: The joint graph. Its placeholders are called `primals_*` and `tangents_*`.
        outputs: How many of its outputs the forward returns.

    Raises:
        InputError: The graph has sizes that are not known when it is traced.
    """
    graph = module.graph
    placeholders = tuple(graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        _check_sizes(node)
    results = pytree.arg_tree_leaves(*graph.output_node().args)
    tangents = tuple(node for node in placeholders if "tangents" in str(node.target))
    calls = [node for node in graph.nodes if node.op in ("call_function", "call_module")]

    after = set(tangents)
    for node in calls:
        if any(read in after for read in node.all_input_nodes) or _is_backward(node):
            after.add(node)
    wanted = [node for node in results[:outputs] if isinstance(node, fx.Node)]
    once = [node for node in calls if runs_once(node)]
    before = _closure(wanted + [node for node in once if node not in after]) - after
    needed = _closure([node for node in results if isinstance(node, fx.Node)] + once)

    views = frozenset(node for node in calls if is_view(node))
    made = [node for node in calls if node not in views and node in needed]
    first = [node for node in made if node in before]
    ops = first + [node for node in made if node not in before]
    return Joint(
        placeholders=placeholders,
        constants=tuple(graph.find_nodes(op="get_attr")),
        ops=tuple(ops),
        forward=len(first),
        views=views,
        bases=_bases(graph, views),
        outputs=tuple(results[:outputs]),
        gradients=tuple(results[outputs:]),
        tangents=tangents,
        backward=frozenset(after),
    )


def problem_of(
    joint: Joint, costs: Callable[[fx.Node], NodeCost], *, name: str, fixed_bytes: int
) -> Graph:
    """Returns the planner's problem for a joint graph.

    Args:
        joint: The joint graph.
        costs: The cost of a node's call.
        name: The name of the problem.
        fixed_bytes: The bytes that are held beside the graph's inputs during the whole step.
    """
    kept_by_caller = _values_of(joint.outputs, joint)
    brought = [joint.bases[node][0] for node in joint.tangents if joint.bases[node]]
    inputs = {
        one
        for node in joint.placeholders
        if node not in joint.tangents
        for one in joint.bases[node]
    }
    values = [
        Value(id, bytes, _kind(id, node, inputs, joint))
        for node in (*joint.placeholders, *joint.ops)
        for id, bytes in _made(node)
    ]
    caller = Op(
        CALLER,
        (Variant(0, reads=tuple(dict.fromkeys(kept_by_caller)), writes=tuple(brought)),),
        phase="loss",
    )
    changed = _changed_inputs(joint)
    ops = [_op(node, joint, costs(node), changed) for node in joint.ops]
    ops.insert(joint.forward, caller)
    held = [] if _FREES_TANGENTS else brought
    results = dict.fromkeys([*kept_by_caller, *_values_of(joint.gradients, joint), *held])
    return Graph(
        name=name,
        values=tuple(values),
        ops=tuple(ops),
        results=tuple(one for one in results if one not in inputs),
        fixed_bytes=fixed_bytes,
    )


def op_values(node: fx.Node) -> list[str | None]:
    """Returns the ids of an op's results as values, in their order; None for no tensor."""
    found = node.meta.get("val")
    if not isinstance(found, (tuple, list)):
        return [node.name]
    return [
        f"{node.name}.{index}" if isinstance(one, torch.Tensor) else None
        for index, one in enumerate(found)
    ]


def _check_sizes(node: fx.Node) -> None:
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    sizes = [node.meta.get("val"), *(size for one in tensors_of(node) for size in one.shape)]
    if any(isinstance(one, symbols) for one in sizes):
        raise InputError(
            f"the graph has a size that is not a number ({node.name}); the backend reprise plans "
            "for known sizes: call torch.compile(..., dynamic=False), and read no number of a "
            "tensor on the host inside the model"
        )


def _is_backward(node: fx.Node) -> bool:
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def _closure(roots: list[fx.Node]) -> set[fx.Node]:
    found: set[fx.Node] = set()
    open_ = list(roots)
    while open_:
        node = open_.pop()
        if node not in found:
            found.add(node)
            open_.extend(node.all_input_nodes)
    return found


def _bases(graph: fx.Graph, views: frozenset[fx.Node]) -> dict[fx.Node, tuple[str, ...]]:
    bases: dict[fx.Node, tuple[str, ...]] = {}
    for node in graph.nodes:
        if node in views:
            bases[node] = _base_of_view(node, bases)
        elif node.op in ("call_function", "call_module", "placeholder"):
            bases[node] = tuple(one for one in op_values(node) if one is not None)
        else:
            bases[node] = ()
    return bases


def _base_of_view(node: fx.Node, bases: dict[fx.Node, tuple[str, ...]]) -> tuple[str, ...]:
    source = node.args[0]
    assert isinstance(source, fx.Node)
    if node.target is operator.getitem and not is_view(source):
        index = node.args[1]
        assert isinstance(index, int)
        one = op_values(source)[index]
        return () if one is None else (one,)
    return bases[source]


def _made(node: fx.Node) -> Iterator[tuple[str, int]]:
    """Yields the values that a node makes, with their bytes."""
    found = node.meta.get("val")
    parts = found if isinstance(found, (tuple, list)) else [found]
    for id, one in zip(op_values(node), parts, strict=True):
        if id is not None:
            yield id, storage_bytes(one) if isinstance(one, torch.Tensor) else 0


def _kind(id: str, node: fx.Node, inputs: set[str], joint: Joint) -> str:
    if id in inputs:
        return "input"
    if node in joint.backward:
        return "gradient"
    return "activation"


def _values_of(nodes: tuple[Any, ...], joint: Joint) -> list[str]:
    return [one for node in nodes if isinstance(node, fx.Node) for one in joint.bases[node]]


def _changed_inputs(joint: Joint) -> set[str]:
    """Returns the inputs that an op writes."""
    changed: set[str] = set()
    for node in joint.ops:
        if writes(node) and isinstance(node.args[0], fx.Node):
            changed.update(joint.bases[node.args[0]])
    return changed


def _op(node: fx.Node, joint: Joint, cost: NodeCost, changed: set[str]) -> Op:
    reads = dict.fromkeys(one for read in node.all_input_nodes for one in joint.bases[read])
    written = [one for one in op_values(node) if one is not None]
    stale = not _ignores_statistics(node) and any(one in changed for one in reads)
    return Op(
        node.name,
        (
            Variant(
                cost.ns,
                workspace_bytes=cost.workspace_bytes,
                reads=tuple(reads),
                writes=tuple(written),
            ),
        ),
        phase="backward" if node in joint.backward else "forward",
        once=runs_once(node) or stale,
        random=is_random(node),
        owner=_owner(node),
    )


def _ignores_statistics(node: fx.Node) -> bool:
    """Returns whether a call is a batch norm in training: its result ignores its statistics."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or "batch_norm" not in target._schema.name:
        return False
    for argument, value in zip(target._schema.arguments, node.args, strict=False):
        if argument.name in ("training", "train"):
            return bool(value)
    return False


def _owner(node: fx.Node) -> str:
    """Returns the path of the module that a call belongs to, as in `named_modules()`."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    return path.removeprefix("L['self']").replace("._modules['", ".").replace("']", "").lstrip(".")
