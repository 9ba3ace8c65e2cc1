"""The search for the fastest split of PyTorch's own partitioner within a budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from .._planning.arguments import Budget, nanoseconds
from .._planning.checking import simulate
from .._planning.graph import Graph
from .._planning.plan import Plan
from .._planning.planning import plan
from .._planning.result import PlanResult
from ..errors import BudgetError
from .joint import CALLER
from .request import refusal
from .stock import Stock, StockSplit

# The planner is asked for this many budgets between its smallest one and the user's.
_BUDGETS = 4

# An op is dropped with this many of its ancestors at most.
_DEPTH = 8

# One move of the search looks at this many of the values that are held at the peak.
_VALUES = 48


def search_split(
    stock: Stock, problem: Graph, budget: Budget, time_limit: float | str, threads: int
) -> tuple[StockSplit, Plan]:
    """Returns the fastest split that was found within a budget, and what it costs as a plan.

    The search begins with what the planner's plans run again, for the budget and for smaller ones.
    PyTorch's partitioner orders that in its own way, so the peak of that order is counted. Then ops
    are dropped until the peak fits, and kept again, the slowest first, as long as it does.

    Raises:
        BudgetError: No split was found that fits.
    """
    search = _Search(stock, problem, budget, time_limit, threads)
    found = search.run()
    return found, search.as_plan(found)


class _Search:
    def __init__(
        self, stock: Stock, problem: Graph, budget: Budget, time_limit: float | str, threads: int
    ) -> None:
        self._stock = stock
        self._problem = problem
        self._threads = threads
        self._seconds = nanoseconds(time_limit) / 1e9
        self._end = time.monotonic() + self._seconds
        self._asked = self._ask(budget)
        self._budget = self._asked.budget_bytes
        self._smallest: int | None = None

    def run(self) -> StockSplit:
        everything_kept = self._stock.split(())
        if self._fits(everything_kept):
            return everything_kept
        starts = [split for split in self._starts() if split is not None]
        fitting = [split for split in starts if self._fits(split)]
        starts = sorted([*starts, everything_kept], key=self._stock.peak)
        for start in starts:
            if fitting or self._late():
                break
            dropped = self._drop_until_it_fits(start, frozenset())
            fitting += [dropped] if dropped is not None else []
        if not fitting:
            raise BudgetError(
                refusal(self._problem, self._asked, self._smallest),
                budget=self._budget or 0,
                requested=self._smallest or 0,
            )
        return self._keep_more(min(fitting, key=self._ns))

    def as_plan(self, split: StockSplit) -> Plan:
        base = self._asked.plan or self._ask(None).plan
        assert base is not None
        made = replace(
            base,
            planner="compile_advice",
            termination="feasible",
            actions=self._stock.actions(split),
        )
        timeline = simulate(self._problem, made)
        return replace(made, peak_bytes=timeline.peak_bytes, time_ns=timeline.time_ns)

    def _starts(self) -> Iterator[StockSplit | None]:
        """Yields splits that run again what plans run again, from the largest budget down."""
        yield self._split_of(self._asked)
        smallest = self._ask(1).smallest_budget_bytes
        if smallest is None or self._budget is None:
            return
        low, high = smallest, self._budget
        if low >= high:
            yield self._split_of(self._ask(low))
            return
        for step in range(1, _BUDGETS + 1):
            if self._late():
                return
            yield self._split_of(self._ask(high - (high - low) * step // _BUDGETS))

    def _drop_until_it_fits(
        self, split: StockSplit, kept: frozenset[str], limit_ns: int | None = None
    ) -> StockSplit | None:
        """Returns a split that fits, or None. The ops `kept` are not dropped."""
        peak = self._stock.peak(split)
        while not self._fits(split):
            best: tuple[int, int, StockSplit] | None = None
            for other in self._changed(split, kept):
                if self._late():
                    return None
                ns = self._ns(other)
                if limit_ns is not None and ns >= limit_ns:
                    continue
                rank = (max(self._stock.peak(other), self._budget or 0), ns)
                self._fits(other)
                if rank[0] < peak and (best is None or rank < best[:2]):
                    best = (*rank, other)
            if best is None:
                return None
            split = best[2]
            peak = self._stock.peak(split)
        return split

    def _changed(self, split: StockSplit, kept: frozenset[str]) -> Iterator[StockSplit]:
        """Yields splits that differ in one value of those that are held at the peak."""
        for id in self._stock.held_at_peak(split)[:_VALUES]:
            if id in split.again:
                yield self._stock.split(split.again - {id})
                continue
            # To make a value again takes others that are not held. They are dropped with it.
            again = split.again | {id}
            held = {node.name for node in split.saved}
            for _ in range(_DEPTH):
                other = self._stock.split(again)
                yield other
                more = {node.name for node in other.saved} - held
                more = (more & self._stock.eligible) - kept
                if not more:
                    break
                again |= more

    def _keep_more(self, split: StockSplit) -> StockSplit:
        """Returns a faster split that fits: ops are kept, in exchange for faster ones perhaps."""
        for id in sorted(split.again, key=self._stock.ns, reverse=True):
            if id not in split.again:
                continue
            if self._late():
                break
            without = self._stock.split(split.again - {id})
            if not self._fits(without):
                found = self._drop_until_it_fits(without, frozenset({id}), self._ns(split))
                if found is None:
                    continue
                without = found
            if self._ns(without) < self._ns(split):
                split = without
        return split

    def _ask(self, budget: Budget) -> PlanResult:
        left = max(0.1, min(self._seconds / (2 * _BUDGETS), self._end - time.monotonic()))
        return plan(self._problem, budget=budget, time_limit=left, threads=self._threads)

    def _split_of(self, result: PlanResult) -> StockSplit | None:
        if result.plan is None:
            return None
        runs = [action.id for action in result.plan.actions if action.kind == "run"]
        return self._stock.split(runs[runs.index(CALLER) :])

    def _ns(self, split: StockSplit) -> int:
        return sum(map(self._stock.ns, split.again))

    def _fits(self, split: StockSplit) -> bool:
        peak = self._stock.peak(split)
        self._smallest = min(peak, self._smallest or peak)
        return self._budget is None or peak <= self._budget

    def _late(self) -> bool:
        return time.monotonic() > self._end
