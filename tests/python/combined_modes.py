"""The capabilities with chain mode and with online mode, whose loops are plain."""

from __future__ import annotations

import itertools
from typing import Any

import reprise
from capabilities import SHARED, VALUES, Options
from combinations import SEARCH, SLACK, Case, accumulate, close, step_of


class Chain(Case):
    """The capabilities with chain mode: the model is planned, and the loop around it is plain."""

    graph = False

    def make(self) -> Any:
        capture, plan = self.options()
        options: Options = {"time_limit": SEARCH, "output_held": False}
        for row in self.rows:
            options |= capture | plan if row.chain is None else row.chain(self)
        if "averages" in self.changes:
            options.pop("process_group", None)
        stages, (x, _) = list(self.model), self.batch(0)
        try:
            reprise.remat(stages, x, module=self.model, budget=1, **options)
        except reprise.BudgetError as error:
            smallest = error.requested
        budget = smallest + SLACK // 8
        # The gradients of one part are there in the next one, and DDP has buckets for them.
        if self.changes & {"parts", "averages"}:
            budget += SLACK + sum(p.nbytes for p in self.trained)
        self.chain = reprise.remat(stages, x, module=self.model, budget=budget, **options)
        # Before the second forward DDP exchanges the order of its buckets, which Gloo frees later.
        self.chain.register_forward_pre_hook(lambda *_: self.settle())
        whole = self.averaging(self.chain)
        return step_of(whole, self.changes)

    def check_peak(self) -> None:
        report: Any = self.chain.report()
        peaks = report.predicted_peak_bytes, report.measured_peak_bytes
        assert peaks[0] == peaks[1] <= report.budget_bytes, (
            f"peaks {peaks} in a budget of {report.budget_bytes}"
        )

    def is_close(self, found: list[Any], expected: list[Any]) -> bool:
        return SHARED in self.names and close(found, expected)

    def uses(self, name: str) -> bool:
        plan = self.chain.planned.plan
        assert plan is not None
        if name == SHARED:
            return any(action.variant == "shared" for action in plan.actions)
        return name != VALUES or self.chain.report().moved_out_bytes > 0

    def fetch(self) -> None:
        pass

    def note(self) -> str:
        return ""


class Online(Case):
    """The capabilities with online mode: the plain step runs inside of it."""

    graph = False

    def make(self) -> Any:
        capture, plan = self.options()
        options: Options = {}
        for row in self.rows:
            options |= capture | plan if row.online is None else row.online(self)
        whole = self.averaging(self.model)
        self.online = reprise.online(budget=self.budget(), **options)

        def step(x: Any, y: Any) -> Any:
            with self.online:
                result = accumulate(whole, self.changes, x, y)
                if "inside" in self.changes:
                    self.optimizer.step()
                    self.optimizer.zero_grad()
            return result

        return step

    def budget(self) -> int:
        """Returns the smallest budget of a row in which the first step runs, with its state."""
        x, y = self.batch(0)
        state = sum(2 * p.nbytes for p in self.trained)
        for budget in itertools.count(reprise.live_bytes(), SLACK // 8):
            try:
                with reprise.online(budget=budget):
                    accumulate(self.model, self.changes, x, y)
            except reprise.BudgetError:
                continue
            self.optimizer.zero_grad()
            return budget + state + SLACK // 4
        raise AssertionError

    def check_peak(self) -> None:
        report = self.online.report()
        assert report.budget_bytes is None or report.measured_peak_bytes <= report.budget_bytes

    def uses(self, name: str) -> bool:
        return self.online.report().evictions > 0

    def fetch(self) -> None:
        pass

    def note(self) -> str:
        return ""
