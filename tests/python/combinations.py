"""A small step on which capabilities meet: trained plainly, and within a budget."""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable
from typing import Any

import reprise
import torch
import torch.distributed as dist
from capabilities import (
    BY_NAME,
    GRAPH,
    MAX_NORM,
    PARAMETERS,
    VALUES,
    Options,
    device_of,
    moves_homes,
    moves_values,
    ranks_of,
    rows_of,
)
from test_shared_steps import favouring
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH, CLASSES, CALLS = 256, 64, 8, 4
SLACK = 30_000  # bytes above the smallest budget
SEARCH = 0.05  # seconds


class Doubles(nn.Module):
    """Reads a boolean out of its input."""

    def forward(self, x: Any) -> Any:
        return 2 * x if x.mean() > 0 else x


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Any) -> Any:
        return x + self.inside(x)


def network(device: str, reads: bool) -> Any:
    """A network with a frozen layer, whose weight is large enough to lie elsewhere."""
    torch.manual_seed(1)
    layers: list[nn.Module] = [
        nn.Linear(WIDTH, WIDTH),
        nn.Dropout(0.1),
        nn.Linear(WIDTH, WIDTH).requires_grad_(False),
        nn.GELU(),
        Block(),
        nn.Linear(WIDTH, CLASSES),
    ]
    return nn.Sequential(*([Doubles()] if reads else []), *layers).to(device)


def adamw(model: Any) -> Any:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)


def left(model: Any, optimizer: Any) -> list[Any]:
    """Returns what training leaves."""
    parameters = list(model.parameters())
    states = [dict(optimizer.state.get(p, {})) for p in parameters]
    return [*[p.detach().clone() for p in parameters], states]


def accumulate(model: Any, changes: frozenset[str], x: Any, y: Any) -> tuple[Any, ...]:
    """Does one step as one would write it: accumulation, averages, clipping."""
    parts, losses = 2 if changes & {"parts", "by hand"} else 1, []
    for k, (a, b) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = k == parts - 1
        loss = F.cross_entropy(model(a), b) / parts
        loss.backward()
        losses.append(loss.detach())
    if "clips" not in changes:
        return (sum(losses),)
    return sum(losses), nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)


def step_of(model: Any, changes: frozenset[str]) -> Callable[..., Any]:
    return lambda x, y: accumulate(model, changes, x, y)


def part_of(model: Any) -> Callable[..., Any]:
    def part(x: Any, y: Any, share: float) -> Any:
        loss = share * F.cross_entropy(model(x), y)
        loss.backward()
        return (loss,)

    return part


class Case:
    """Some capabilities together: trained plainly, and by a captured step within a budget."""

    graph = True  # The mode.
    group: Any
    model: Any
    trained: list[Any]
    optimizer: Any
    step: Any  # It is called in the loop.
    loaded: bool  # from a saved state
    norm: float  # of the gradients of the last step

    def __init__(
        self, names: tuple[str, ...], folder: pathlib.Path, rank: int = 0, group: Any = None
    ) -> None:
        self.names, self.folder, self.rank, self.group = names, folder, rank, group
        self.rows = rows_of(names)
        self.changes = frozenset(row.change for row in self.rows)
        self.ranks = ranks_of(names)
        self.device = device_of(names) if self.graph else "cpu"
        self.loaded, self.norm = False, 0.0
        self.used: set[str] = set()
        self.begin()

    def begin(self) -> None:
        self.model = network(self.device, "reads" in self.changes)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = adamw(self.model)

    def seed(self, number: int) -> None:
        torch.manual_seed(100 * number + (self.rank if "averages" in self.changes else 0))

    def batch(self, call: int) -> tuple[Any, Any]:
        """Returns inputs for which the step reads true at every second call, of two shapes."""
        self.seed(call)
        rows = ROWS // 2 if "shapes" in self.changes and call >= CALLS // 2 else ROWS
        x, y = torch.randn(rows, WIDTH) + 2 * (call % 2) - 1, torch.randint(0, CLASSES, (rows,))
        return x.to(self.device), y.to(self.device)

    def averaging(self, model: Any) -> Any:
        if "averages" not in self.changes:
            return model
        return nn.parallel.DistributedDataParallel(model, process_group=self.group)

    def plainly(self) -> list[Any]:
        """Trains without Reprise."""
        model = network(self.device, "reads" in self.changes)
        optimizer, whole = adamw(model), self.averaging(model)
        found: list[Any] = []
        for call in range(CALLS):
            x, y = self.batch(call)
            found += accumulate(whole, self.changes, x, y)
            optimizer.step()
            optimizer.zero_grad()
        return [*found, *left(model, optimizer)]

    def options(self) -> tuple[Options, Options]:
        """Returns the options of `capture()` and those of `plan()`."""
        capture: Options = {}
        plan: Options = {}
        for row in self.rows:
            capture |= row.capture(self)
            plan |= row.plan(self)
        return capture, plan

    def make(self) -> Any:
        """Returns the captured step, planned within little more than its smallest budget."""
        capture, plan = self.options()
        capture["cache"] = self.folder.parent / "cache"  # Most steps have the same operations.
        step: Any
        if "parts" in self.changes:
            if "clips" in self.changes:
                raise NotImplementedError(
                    "micro_batches() calls the function for each part, and has no place behind the "
                    "last part, where the gradients are complete"
                )

            capture |= {"parts": [2], "time_limit": SEARCH}
            step = reprise.micro_batches(part_of(self.model), *self.batch(0), **capture)
        else:
            step = reprise.capture(step_of(self.model, self.changes), *self.batch(0), **capture)
        # On a busy machine a plan that has to move values may take longer to find.
        for limit in (SEARCH, 4 * SEARCH, 16 * SEARCH):
            self.plan_small(step, time_limit=limit, **plan)
            if VALUES not in self.names or moves_values(step.graph, step.planned.plan):
                break
        # A parameter stays on the device where the budget has room for it.
        while PARAMETERS in self.names and not moves_homes(step.graph, step.planned.plan):
            less = step.planned.plan.peak_bytes - 1
            step.plan(budget=less, time_limit=4 * SEARCH, **plan)
        if "shares" in self.changes:
            step.use(sharing(step, PARAMETERS in self.names), **plan)
            self.settle()
        return step

    def plan_small(self, step: Any, **options: Any) -> None:
        """Plans within little more than the smallest budget that a search finds."""
        try:
            step.plan(budget=1, **options)
        except reprise.BudgetError as error:
            smallest = error.requested
        step.plan(budget=smallest + SLACK, **options)

    def planned(self) -> list[Any]:
        """Trains by the step that Reprise plans. The result is that of `plainly()`."""
        self.step = self.make()
        found: list[Any] = []
        for call in range(CALLS):
            if "saves" in self.changes and call == CALLS // 2:
                self.go_on_elsewhere()
            x, y = self.batch(call)
            self.settle()
            loss, *norm = self.step(x, y)
            found += [each.detach().clone() for each in (loss, *norm)]
            self.norm = float(norm[0]) if norm else 0.0
            if "inside" not in self.changes:
                self.optimizer.step()
                self.optimizer.zero_grad()
            self.check_peak()
            self.used |= {name for name in self.names if self.uses(name)}
        assert self.used == {*self.names}, f"used were only {self.used}"
        self.fetch()
        return [*found, *left(self.model, self.optimizer)]

    def check_peak(self) -> None:
        report = self.step.report()
        peaks = report.predicted_peak_bytes, report.measured_peak_bytes
        assert peaks[0] == peaks[1] <= report.budget_bytes, (
            f"peaks {peaks} in a budget of {report.budget_bytes}"
        )

    def uses(self, name: str) -> bool:
        return BY_NAME[name].used(self)

    def fetch(self) -> None:
        self.step.fetch_optimizer_state()
        self.step.fetch_parameters()

    def go_on_elsewhere(self) -> None:
        """Saves the state, and loads it into another model with a step of its own."""
        path = self.folder / "state"
        saved: Options = {"process_group": self.group}
        reprise.save_state(path, model=self.model, optimizer=self.optimizer, **saved)
        del self.step
        self.begin()
        self.step = self.make()
        reprise.load_state(path, model=self.model, optimizer=self.optimizer, **saved)
        self.loaded = True
        self.settle()

    def settle(self) -> None:
        """Waits for threads of the group, which free the memory of exchanges when they come by."""
        before = -1
        while self.ranks > 1 and before != (before := reprise.live_bytes()):
            time.sleep(0.02)

    def is_close(self, found: list[Any], expected: list[Any]) -> bool:
        """Says whether results may differ by rounding, and do."""
        return False

    def note(self) -> str:
        """Returns what a table has to say of a case that works."""
        reason = self.step.report().no_device_graph if GRAPH in self.names else ""
        return f"by operation: {reason}" if reason else ""


def sharing(step: Any, homes_move: bool) -> Any:
    """Returns rank 0's plan, which shares out what it can, and moves values where it has to.

    `homes_move` asks for a plan that moves what has a home, too.
    """
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        machine = step.machine()
        problem = favouring(step.graph, "shared")
        found, limit, budget = None, SEARCH, step.planned.budget_bytes

        def moves(plan: Any) -> bool:
            homes = not homes_move or moves_homes(step.graph, plan)
            return homes and moves_values(step.graph, plan)

        # A busy machine may need more time to find a plan that is as small as that.
        while found is None or not (machine is None or moves(found)):
            assert limit < 10, "no plan moves what it has to"
            options: Options = {"time_limit": limit, "machine": machine}
            options["planner"] = "graph_levels" if machine else "graph"
            if machine and found is None:
                smallest = reprise.plan(problem, budget=1, **options).smallest_budget_bytes
                assert smallest is not None
                budget = smallest + SLACK // 10
            elif found is not None:
                budget = found.peak_bytes - 1  # Values stay where the budget has room for them.
            found = reprise.plan(problem, budget=budget, **options).plan
            limit *= 1.5
        cost = reprise.simulate(step.graph, found, machine=machine)
        told[0] = dataclasses.replace(
            found,
            problem=step.planned.plan.problem,
            baseline=step.planned.plan.baseline,
            termination="feasible",
            lower_bound_ns=0,
            peak_bytes=cost.peak_bytes,
            time_ns=cost.time_ns,
        ).to_json()
    dist.broadcast_object_list(told)
    return reprise.Plan.from_json(told[0])


def close(one: Any, other: Any) -> bool:
    """Says whether two results are equal up to rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4)


def same(one: Any, other: Any) -> bool:
    """Says whether two results have the same bits. A shard leaves states out of the first one."""
    if isinstance(one, dict):
        return not one or (one.keys() == other.keys() and all(same(one[k], other[k]) for k in one))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other)


def outcome(case: Case) -> str:
    """Returns "" if the capabilities work together, and else what stands in the way."""
    expected = case.plainly()
    try:
        found = case.planned()
    except (reprise.InputError, TypeError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"
    assert same(found, expected) or case.is_close(found, expected), "other bits"
    return case.note()
