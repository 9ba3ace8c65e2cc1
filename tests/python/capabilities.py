"""Capabilities, one row each: how a step asks for it, and how to see that the step used it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

Case = Any  # That of combinations.py

MAX_NORM = 0.05
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


def moves_values(graph: Any, plan: Any) -> bool:
    """Says whether a plan copies a value that has no home, which the step makes."""
    homes = {value.id: value.home for value in graph.values}
    return any(action.kind == "copy" and homes[action.id] == "" for action in plan.actions)


def moves_homes(graph: Any, plan: Any) -> bool:
    """Says whether a plan copies a value that has a home, which the step finds or leaves there."""
    homes = {value.id: value.home for value in graph.values}
    return any(action.kind == "copy" and homes[action.id] != "" for action in plan.actions)


def made_values_move(case: Case) -> bool:
    return moves_values(case.step.graph, case.step.planned.plan)


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
