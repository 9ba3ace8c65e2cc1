"""The forward and the backward that PyTorch's own partitioner makes of a tagged joint graph.

PyTorch's partitioner (`min_cut_rematerialization_partition`) chooses what the forward saves. Tags
on the nodes decide that choice. The order follows from its code: the forward keeps the order of the
joint graph, and the backward makes what was not saved shortly before its first use
(`reordering_to_mimic_autograd_engine`, the same in PyTorch 2.11 to 2.14). `Stock` works that order
out, so that its peak can be counted before anything runs.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from .._planning.graph import Graph
from .._planning.plan import Action
from .joint import CALLER, Joint, is_view, op_values


@dataclass(frozen=True)
class StockSplit:
    """A joint graph in two halves.

    Attributes:
        forward: The ops and the views of the forward, in their order.
        backward: Those of the backward.
        saved: The ops of the forward whose values the backward reads.
        again: The ops that the backward runs again, by id.
    """

    forward: tuple[fx.Node, ...]
    backward: tuple[fx.Node, ...]
    saved: frozenset[fx.Node]
    again: frozenset[str]


class Stock:
    """Splits one joint graph in many ways."""

    def __init__(self, graph: fx.Graph, joint: Joint, problem: Graph) -> None:
        self._joint = joint
        self._order = {node: at for at, node in enumerate(graph.nodes)}
        self._ops = {op.id: op for op in problem.ops}
        self._bytes = {value.id: value.bytes for value in problem.values}
        self._inputs = {value.id for value in problem.values if value.kind == "input"}
        self._base = problem.fixed_bytes + sum(self._bytes[one] for one in self._inputs)
        self._results = set(problem.results)
        self._forward_ops = frozenset(joint.ops[: joint.forward])
        self._made = frozenset(joint.ops)
        self._wanted = [one for one in joint.outputs if isinstance(one, fx.Node)]
        self._wanted += [node for node in self._forward_ops if self._ops[node.name].once]
        self._roots = [one for one in joint.gradients if isinstance(one, fx.Node)]
        after = [node for node in joint.ops[joint.forward :] if self._ops[node.name].once]
        self._roots += after
        self._maker_of = {one: op.id for op in problem.ops for one in op.variants[0].writes}
        self._peaks: dict[frozenset[str], int] = {}
        self._eligible = frozenset(
            node.name
            for node in self._forward_ops
            if not self._ops[node.name].once
            and not _may_draw(node)
            and not any(one in self._results for one in self._ops[node.name].variants[0].writes)
        )

    @property
    def eligible(self) -> frozenset[str]:
        """The ids of the ops that the backward may run again."""
        return self._eligible

    def ns(self, id: str) -> int:
        """Returns the time of an op in nanoseconds."""
        return self._ops[id].variants[0].ns

    def split(self, again: Iterable[str]) -> StockSplit:
        """Returns the two halves if the backward makes the values of the ops `again` itself.

        Ops of `again` that the backward does not need are left out.
        """
        wished = self._eligible.intersection(again)
        needed, saved = self._backward_needs(wished)
        forward = self._closure([*self._wanted, *saved])
        return StockSplit(
            forward=tuple(sorted(forward, key=self._order.__getitem__)),
            backward=tuple(self._as_autograd_runs(needed)),
            saved=frozenset(self._maker(node) for node in saved),
            again=frozenset(node.name for node in needed if node.name in wished),
        )

    def actions(self, split: StockSplit) -> tuple[Action, ...]:
        """Returns the split as the actions of a plan."""
        kept = {one for node in split.saved for one in op_values(node) if one is not None}
        kept &= self._read_by(split.backward)
        forward = self._half(split.forward, kept | self._results)
        loss = [Action("run", CALLER, "default")]
        brought = self._ops[CALLER].variants[0].writes
        reads = self._read_by(split.backward)
        loss += [
            Action("free", one) for one in brought if one not in reads and one not in self._results
        ]
        return (*forward, *loss, *self._half(split.backward, self._results))

    def peak(self, split: StockSplit) -> int:
        """Returns the most bytes that are held at one time, as `simulate()` counts them."""
        if split.again not in self._peaks:
            self._peaks[split.again] = self._walk(split)[0]
        return self._peaks[split.again]

    def held_at_peak(self, split: StockSplit) -> list[str]:
        """Returns the ops that may run again and whose results are held at the peak.

        The op with the most bytes comes first.
        """
        made: dict[str, int] = {}
        for value in self._walk(split)[1]:
            id = self._maker_of[value]
            if id in self._eligible:
                made[id] = made.get(id, 0) + self._bytes[value]
        return sorted(made, key=made.__getitem__, reverse=True)

    def _walk(self, split: StockSplit) -> tuple[int, list[str]]:
        """Returns the peak, and the values that are held there."""
        live: dict[str, int] = {}
        held = peak = self._base
        at_peak: list[str] = []
        for action in self.actions(split):
            if action.kind == "free":
                held -= live.pop(action.id)
                continue
            variant = self._ops[action.id].variants[0]
            added = sum(self._bytes[one] for one in variant.writes)
            if held + added + variant.workspace_bytes > peak:
                peak = held + added + variant.workspace_bytes
                at_peak = list(live)
            for one in variant.writes:
                held += self._bytes[one] - live.get(one, 0)
                live[one] = self._bytes[one]
        return peak, at_peak

    def tag(self, split: StockSplit) -> None:
        """Writes the tags for which PyTorch's partitioner makes this split."""
        for node in self._order:
            node.meta.pop("recompute", None)
            node.meta.pop("ac_graph_id", None)
        for node in split.saved:
            _tag(node, CheckpointPolicy.MUST_SAVE)
            for user in node.users:
                if user.target is operator.getitem:
                    _tag(user, CheckpointPolicy.MUST_SAVE)
        for node in split.backward:
            # Views are tagged, too: PyTorch saves a view that it would rather not make again.
            if node not in self._joint.backward:
                _tag(node, CheckpointPolicy.MUST_RECOMPUTE)

    def _maker(self, node: fx.Node) -> fx.Node:
        """Returns the node whose call made what a node returns, if the node takes one part."""
        source = node.args[0] if node.args else None
        if node.target is operator.getitem and isinstance(source, fx.Node):
            return node if is_view(source) else source
        return node

    def _backward_needs(self, again: frozenset[str]) -> tuple[set[fx.Node], set[fx.Node]]:
        """Returns the nodes of the backward, and the nodes that it takes from the forward."""
        needed: set[fx.Node] = set()
        saved: set[fx.Node] = set()
        open_ = list(self._roots)
        while open_:
            node = open_.pop()
            if node in needed or node.op in ("placeholder", "get_attr"):
                continue
            maker = self._maker(node)
            if maker in self._forward_ops and maker.name not in again:
                saved.add(node)
                continue
            needed.add(node)
            open_.extend(node.all_input_nodes)
        return needed, saved

    def _closure(self, roots: Iterable[fx.Node]) -> set[fx.Node]:
        found: set[fx.Node] = set()
        open_ = list(roots)
        while open_:
            node = open_.pop()
            if node not in found and node.op not in ("placeholder", "get_attr"):
                found.add(node)
                open_.extend(node.all_input_nodes)
        return found

    def _as_autograd_runs(self, needed: set[fx.Node]) -> list[fx.Node]:
        """Returns the nodes of a backward as `reordering_to_mimic_autograd_engine` has them."""
        nodes = sorted(needed, key=self._order.__getitem__)
        tangents = set(self._joint.tangents)
        first = next(
            (at for at, node in enumerate(nodes) if tangents.intersection(node.all_input_nodes)), 0
        )
        done: set[fx.Node] = set()
        ordered: list[fx.Node] = []
        for node in nodes[first:]:
            missing: set[fx.Node] = set()
            open_ = [node]
            while open_:
                one = open_.pop()
                if one in needed and one not in done and one not in missing:
                    missing.add(one)
                    open_.extend(one.all_input_nodes)
            ordered += sorted(missing, key=self._order.__getitem__)
            done |= missing
        return ordered

    def _read_by(self, nodes: Iterable[fx.Node]) -> set[str]:
        return {
            one
            for node in nodes
            for read in node.all_input_nodes
            for one in self._joint.bases[read]
        }

    def _half(self, nodes: tuple[fx.Node, ...], held: set[str]) -> list[Action]:
        """Returns the runs of one half. A storage is freed after the last use of its last view."""
        joint = self._joint
        last: dict[str, int] = {}
        for at, node in enumerate(nodes):
            if self._maker(node) is not node:
                continue  # PyTorch takes the parts of a result right after its call.
            for read in node.all_input_nodes:
                last.update((one, at) for one in joint.bases[read])
            if node in self._made:
                last.update((one, at) for one in op_values(node) if one is not None)
        dead: dict[int, list[str]] = {}
        for one, at in last.items():
            if one not in held and one not in self._inputs:
                dead.setdefault(at, []).append(one)
        actions: list[Action] = []
        for at, node in enumerate(nodes):
            if node in self._made:
                actions.append(Action("run", node.name, "default"))
            actions += [Action("free", one) for one in dead.get(at, ())]
        return actions


def _may_draw(node: fx.Node) -> bool:
    """Returns whether PyTorch would save a random state to run a call again.

    It does so for attention without dropout, too.
    """
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and (
        torch.Tag.nondeterministic_seeded in target.tags
    )


def _tag(node: fx.Node, policy: CheckpointPolicy) -> None:
    node.meta["recompute"] = policy
    # One number for all: PyTorch saves a value between regions of different numbers.
    node.meta["ac_graph_id"] = 1
