"""Capabilities, one row each, and a small step on which any of them meet."""

from __future__ import annotations

import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable
from typing import Any

import reprise
import torch
import torch.distributed as dist
from test_shared_steps import favouring
from torch import nn
from torch.nn import functional as F

ROWS, WIDTH, CLASSES, CALLS, MAX_NORM = 256, 64, 8, 4, 0.05
SLACK = 30_000  # bytes above the smallest budget
SEARCH = 0.05  # seconds
Options = dict[str, Any]


def no_options(case: Case) -> Options:
    return {}


@dataclasses.dataclass(frozen=True)
class Row:
    """A capability: what it asks for, what it changes, and how to see that it did something.

    Attributes:
        name: Its name in the tables.
        used: Says whether a captured step has made use of it, behind a call.
        needs: The capabilities without which it cannot be asked for.
        capture: Returns the options of `capture()`.
        plan: Returns the options of `plan()`.
        chain: Returns the options of `remat()`. None stands for those of `capture()` and `plan()`.
        online: The same for `online()`.
        ranks: 2 if it takes a process group.
        device: The device of model and batch.
        change: What it changes in the step or in the loop, see `Case`.
    """

    name: str
    used: Callable[[Case], bool]
    needs: tuple[str, ...] = ()
    capture: Callable[[Case], Options] = no_options
    plan: Callable[[Case], Options] = no_options
    chain: Callable[[Case], Options] | None = None
    online: Callable[[Case], Options] | None = None
    ranks: int = 1
    device: str = "cpu"
    change: str = ""


def fast(memory: str) -> Options:
    """Returns a machine on which moving costs next to nothing, so that plans move."""
    return {
        "format": "reprise.machine",
        "version": 1,
        "memories": [{"name": "device"}, {"name": memory}],
        "channels": [
            {"from": a, "to": b, "bytes_per_second": 100_000_000_000, "latency_ns": 0}
            for a, b in (("device", memory), (memory, "device"))
        ],
    }


def far_memory(case: Case) -> Options:
    if case.device == "cpu":
        return {"offload": f"disk:{case.folder}", "machine": fast("disk")}
    return {"offload": "host", "machine": fast("host")}


def made_values_move(case: Case) -> bool:
    """Says whether the plan in force copies a value that has no home, which the step makes."""
    homes = {value.id: value.home for value in case.step.graph.values}
    actions = case.step.planned.plan.actions
    return any(action.kind == "copy" and homes[action.id] == "" for action in actions)


def is_away(tensors: list[Any]) -> bool:
    """Says whether reading one of the tensors is refused."""
    for tensor in tensors:
        try:
            tensor.sum()
        except RuntimeError:
            return True
    return False


def states(case: Case) -> list[Any]:
    fields = [f for p in case.trained for f in dict(case.optimizer.state.get(p, {})).values()]
    return [field for field in fields if field.dim() > 0]


def sums_gradients(case: Case) -> bool:
    return any("allreduce.start" in action.id for action in case.step.planned.plan.actions)


VALUES, STATE, PARAMETERS = "values away", "optimizer's state away", "parameters away"
INSIDE, GROUP, SHARDS = "optimizer inside", "process group", "sharded optimizer"
SHARED, DEVICES, GRAPH = "shared work", "other devices", "device graph"
READS, PARTS, AGAIN = "host reads and outcomes", "micro-batches", "recapture"
CLIPS, SAVES = "clipping", "saved state"

ALL = [
    Row(
        VALUES,
        made_values_move,
        plan=far_memory,
        chain=lambda case: far_memory(case) | {"planner": "save_on_cpu"},
    ),
    Row(
        STATE,
        lambda case: is_away(states(case)),
        needs=(VALUES, INSIDE),
        plan=lambda case: {"offload_optimizer": True},
    ),
    Row(
        PARAMETERS,
        lambda case: is_away([p.detach() for p in case.model.parameters()]),
        needs=(VALUES,),
        plan=lambda case: {"offload_parameters": True},
    ),
    Row(
        INSIDE,
        lambda case: bool(case.optimizer.state) and all(p.grad is None for p in case.trained),
        capture=lambda case: {"optimizer": case.optimizer},
        online=no_options,
        change="inside",
    ),
    Row(
        GROUP,
        sums_gradients,
        capture=lambda case: {"process_group": case.group},
        chain=no_options,
        online=no_options,
        ranks=2,
        change="averages",
    ),
    Row(
        SHARDS,
        lambda case: 0 < len(case.optimizer.state) < len(case.trained),
        needs=(GROUP, INSIDE),
        capture=lambda case: {"shard_optimizer": True},
        ranks=2,
    ),
    Row(
        SHARED,
        lambda case: any(a.variant.startswith("shared/") for a in case.step.planned.plan.actions),
        capture=lambda case: {"share_work": case.group},
        chain=lambda case: {"process_group": case.group, "alternatives": []},
        ranks=2,
        change="shares",
    ),
    Row(
        DEVICES,
        lambda case: sum(each.runs for each in case.step.report().other_devices) > 0,
        capture=lambda case: {"other_devices": ["sim:1"]},
        device="sim:0",
    ),
    Row(
        GRAPH,  # A step that cannot run as a graph runs operation by operation, and says why.
        lambda case: case.step.report().graphed > 0 or case.step.report().no_device_graph != "",
        plan=lambda case: {"device_graph": True},
        device="sim:0",
    ),
    Row(
        READS,
        lambda case: case.step.outcomes == 2,
        capture=lambda case: {"on_miss": "recapture"},
        chain=no_options,
        online=no_options,
        change="reads",
    ),
    Row(
        PARTS,
        lambda case: case.step.parts == 2,
        chain=no_options,
        online=no_options,
        change="parts",
    ),
    Row(
        AGAIN,
        lambda case: sum(each.work == "capture" for each in case.step.report().overheads) > 1,
        capture=lambda case: {"on_miss": "recapture"},
        chain=no_options,
        online=no_options,
        change="shapes",
    ),
    Row(
        CLIPS,
        lambda case: case.norm > MAX_NORM,
        chain=no_options,
        online=no_options,
        change="clips",
    ),
    Row(SAVES, lambda case: case.loaded, chain=no_options, online=no_options, change="saves"),
]
BY_HAND = "accumulation in the captured function"
OTHERS = [Row(BY_HAND, lambda case: True, change="by hand")]
BY_NAME = {row.name: row for row in ALL + OTHERS}
PAIRS = list(itertools.combinations([row.name for row in ALL], 2))


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


def rows_of(names: tuple[str, ...]) -> list[Row]:
    """Returns the rows of capabilities, and of those that they need."""
    asked = set(names)
    while more := {need for name in asked for need in BY_NAME[name].needs} - asked:
        asked |= more
    return [row for row in BY_NAME.values() if row.name in asked]


def ranks_of(names: tuple[str, ...]) -> int:
    return max(row.ranks for row in rows_of(names))


def device_of(names: tuple[str, ...]) -> str:
    """Returns the device of model and batch. With ranks it is the CPU, because Gloo is for it."""
    return "cpu" if ranks_of(names) > 1 else max(row.device for row in rows_of(names))


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
    step: Any  # It is called in the loop.

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
        plan["time_limit"] = SEARCH
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
        try:
            step.plan(budget=1, **plan)
        except reprise.BudgetError as error:
            smallest = error.requested
        step.plan(budget=smallest + SLACK, **plan)
        if "shares" in self.changes:
            del plan["time_limit"]
            step.use(sharing(step), **plan)
            self.settle()
        return step

    def planned(self) -> list[Any]:
        """Trains by the step that Reprise plans. The result is that of `plainly()`."""
        self.step = self.make()
        found: list[Any] = []
        for call in range(CALLS):
            if "saves" in self.changes and call == CALLS // 2:
                self.go_on_elsewhere()
            x, y = self.batch(call)
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
        assert peaks[0] == peaks[1] <= report.budget_bytes, f"{peaks}, {report.budget_bytes}"

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


def sharing(step: Any) -> Any:
    """Returns rank 0's plan, which shares out what it can."""
    told: list[Any] = [None]
    if dist.get_rank() == 0:
        budget = step.planned.budget_bytes
        found = reprise.plan(
            favouring(step.graph, "shared"), planner="graph", time_limit=SEARCH, budget=budget
        ).plan
        assert found is not None
        cost = reprise.simulate(step.graph, found)
        told[0] = dataclasses.replace(
            step.planned.plan,
            planner=found.planner,
            schedule_class=found.schedule_class,
            termination="feasible",
            lower_bound_ns=0,
            peak_bytes=cost.peak_bytes,
            time_ns=cost.time_ns,
            actions=found.actions,
        ).to_json()
    dist.broadcast_object_list(told)
    return reprise.Plan.from_json(told[0])


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
            budget += sum(p.nbytes for p in self.trained)
        self.chain = reprise.remat(stages, x, module=self.model, budget=budget, **options)
        whole = self.averaging(self.chain)
        return step_of(whole, self.changes)

    def check_peak(self) -> None:
        report: Any = self.chain.report()
        peaks = report.predicted_peak_bytes, report.measured_peak_bytes
        assert peaks[0] == peaks[1] <= report.budget_bytes, f"{peaks}, {report.budget_bytes}"

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
