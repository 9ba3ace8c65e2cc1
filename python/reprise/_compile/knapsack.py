"""A solver for PyTorch's `activation_memory_budget`, with measured times."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._inductor.custom_graph_pass import CustomKnapsackSolver

from .request import costs_of

# PyTorch gives sizes as shares of the saved bytes. They are rounded up to this part of one, and the
# budget is rounded down, so that no answer is above it.
_UNIT = 2**40

# More open states than this are thinned out: the answer fits, but may not be the best one.
_STATES = 5_000


def knapsack(*, times: str = "measured") -> CustomKnapsackSolver:
    """Returns a solver for `torch._functorch.config.activation_memory_budget_solver`.

    PyTorch's `activation_memory_budget` chooses which results a compiled forward saves, by a
    knapsack problem: the most time that is saved, within a share of the saved bytes. PyTorch's
    solver counts bytes in steps of a ten-thousandth, and by default takes the number of
    multiplications and additions for the time. This one takes measured times and solves the
    problem exactly, unless it has more than 5,000 open states.

    The knob remains a share of saved bytes, not of the peak. `compile_advice()` takes a budget for
    the peak.

    Args:
        times: "measured" measures each call once on its device. "estimated" takes bytes at 10 GB/s
            and operations at 100 Gflop/s.

    Raises:
        InputError: `times` is neither of these.

    Examples:
        >>> from torch._functorch import config
        >>> with config.patch(
        ...     activation_memory_budget=0.5,
        ...     activation_memory_budget_solver=reprise.knapsack(times="estimated"),
        ... ):
        ...     loss = torch.compile(plain, backend="aot_eager")(x)
    """
    costs = costs_of(times)

    class Knapsack(CustomKnapsackSolver):
        def __call__(
            self,
            memory: list[float],
            joint_graph: fx.Graph,
            max_memory: float,
            node_info: Any,
            all_recomputable_banned_nodes: list[fx.Node],
        ) -> tuple[list[int], list[int]]:
            del joint_graph, node_info
            saved = best_subset(
                [-int(-share * _UNIT // 1) for share in memory],
                [costs(node).ns for node in all_recomputable_banned_nodes],
                int(max_memory * _UNIT // 1),
            )
            chosen = set(saved)
            return saved, [at for at in range(len(memory)) if at not in chosen]

        def uuid(self) -> None:
            return None  # Times vary: PyTorch's cache of compiled graphs does not know them.

    return Knapsack()


@dataclass(frozen=True)
class _Kind:
    """Items of equal weight and value."""

    weight: int
    value: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class _State:
    """A choice among the kinds so far, as the last kind's count and the choice before it."""

    weight: int
    value: int
    count: int = 0
    before: _State | None = None


def best_subset(weights: Sequence[int], values: Sequence[int], capacity: int) -> list[int]:
    """Returns the positions of the items with the largest sum of values within a capacity.

    The search goes through the kinds of items, those of the most value for their weight first. It
    keeps the states that no other state beats in weight and value (Nemhauser and Ullmann, 1969),
    and drops those that cannot reach the best known value even if a fraction of an item is taken.
    """
    kinds = _kinds(weights, values, capacity)
    bounds = _Bounds(kinds)
    states = [_State(0, 0)]
    best, best_at, best_value = states[0], 0, bounds.whole(0, capacity)
    for at, kind in enumerate(kinds, 1):
        states = _unbeaten(list(_with(kind, states, capacity)))
        for state in states:
            value = state.value + bounds.whole(at, capacity - state.weight)
            if value > best_value:
                best, best_at, best_value = state, at, value
        reach = [
            state.value + bounds.with_fraction(at, capacity - state.weight) for state in states
        ]
        open_ = [index for index, most in enumerate(reach) if most > best_value]
        open_ = sorted(open_, key=reach.__getitem__, reverse=True)[:_STATES]
        states = [states[index] for index in sorted(open_)]
        if not states:
            break
    return sorted([*_items(best, kinds[:best_at]), *bounds.items(best_at, capacity - best.weight)])


def _with(kind: _Kind, states: list[_State], capacity: int) -> Iterator[_State]:
    for state in states:
        for count in range(len(kind.items) + 1):
            weight = state.weight + count * kind.weight
            if weight > capacity:
                break
            yield _State(weight, state.value + count * kind.value, count, state)


class _Bounds:
    """The value that the kinds from one on can still add."""

    def __init__(self, kinds: list[_Kind]) -> None:
        self._kinds = kinds
        self._weights = [0]
        self._values = [0]
        for kind in kinds:
            self._weights.append(self._weights[-1] + kind.weight * len(kind.items))
            self._values.append(self._values[-1] + kind.value * len(kind.items))

    def whole(self, kind: int, left: int) -> int:
        """Returns the value of `items()`."""
        end, count, _ = self._reached(kind, left)
        more = count * self._kinds[end].value if count else 0
        return self._values[end] - self._values[kind] + more

    def with_fraction(self, kind: int, left: int) -> int:
        """Returns a value that cannot be surpassed: a fraction of the next item is taken, too."""
        end, count, left = self._reached(kind, left)
        value = self._values[end] - self._values[kind]
        if end == len(self._kinds):
            return value
        next_ = self._kinds[end]
        return value + count * next_.value - (-left * next_.value // next_.weight)

    def items(self, kind: int, left: int) -> list[int]:
        """Returns the positions of items that fit: kinds in their order, up to the first that
        does not fit as a whole."""
        end, count, _ = self._reached(kind, left)
        chosen = [item for one in self._kinds[kind:end] for item in one.items]
        return chosen + list(self._kinds[end].items[:count]) if count else chosen

    def _reached(self, kind: int, left: int) -> tuple[int, int, int]:
        """Returns the first kind that does not fit, how many of it do, and what is left then."""
        end = bisect.bisect_right(self._weights, self._weights[kind] + left) - 1
        left -= self._weights[end] - self._weights[kind]
        if end == len(self._kinds):
            return end, 0, left
        count = left // self._kinds[end].weight
        return end, count, left - count * self._kinds[end].weight


def _kinds(weights: Sequence[int], values: Sequence[int], capacity: int) -> list[_Kind]:
    grouped: dict[tuple[int, int], list[int]] = {}
    for at, (weight, value) in enumerate(zip(weights, values, strict=True)):
        if value > 0 and weight <= capacity:
            grouped.setdefault((weight, value), []).append(at)
    kinds = [_Kind(weight, value, tuple(items)) for (weight, value), items in grouped.items()]
    free = [kind for kind in kinds if kind.weight == 0]
    others = [kind for kind in kinds if kind.weight > 0]
    return free + sorted(others, key=lambda kind: kind.value / kind.weight, reverse=True)


def _unbeaten(states: list[_State]) -> list[_State]:
    states.sort(key=lambda state: (state.weight, -state.value))
    kept: list[_State] = []
    for state in states:
        if not kept or state.value > kept[-1].value:
            kept.append(state)
    return kept


def _items(state: _State, kinds: list[_Kind]) -> list[int]:
    chosen: list[int] = []
    step: _State | None = state
    for kind in reversed(kinds):
        assert step is not None
        chosen += itertools.islice(kind.items, step.count)
        step = step.before
    return chosen
