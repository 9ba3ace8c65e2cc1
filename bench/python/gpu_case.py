"""Rows of the GPU benchmark, in a process of their own. gpu.py starts it with cases as JSON.

Each line of its output is a row as JSON: what was measured, or why it was not. Rows that follow
each other share a capture where they can. With --about and a device the line is what the page says
of the machine. Processes that share a device take turns with captures and with measured steps where
REPRISE_BENCH_LOCK names a file for that.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import reprise
import torch
from device_memory import DeviceMemory, machine, use_device
from gpu_ways import CAPTURING, WAYS, WITH_BUDGET, Case, Step, Training


@contextlib.contextmanager
def turn() -> Iterator[None]:
    """Waits until no other process of the benchmark measures on this device."""
    name = os.environ.get("REPRISE_BENCH_LOCK")
    if not name:
        yield
        return
    with open(name, "w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def measure(case: Case, memory: DeviceMemory, training: Training) -> dict[str, Any]:
    """Returns the figures of a row. The training may have a captured step of the row before."""
    training.case = case
    training.restart()
    memory.reset()
    budget = budget_of(case, memory)
    row: dict[str, Any] = {"level": memory.live()}
    begin = time.perf_counter()
    step, planned = WAYS[case.way](training, budget)
    row["prepare_s"] = time.perf_counter() - begin
    if budget:
        row["budget"] = budget
    if case.way in CAPTURING:
        row["capture_s"] = training.capture_s
    with turn():
        row |= measured_steps(training, memory, step)
    if planned is not None:
        row |= reported(planned.report(), memory.counted_here)
        if hasattr(planned, "machine"):
            row["machine"] = planned.machine()
    return row


def measured_steps(training: Training, memory: DeviceMemory, step: Step) -> dict[str, Any]:
    case = training.case
    row: dict[str, Any] = {"digests": digests(training, step)}
    if case.way.startswith("eager"):
        row["repeats"] = digests(training, step) == row["digests"]
        if training.optimizer is None:
            row["repeats"] = row["repeats"] and all(
                one == row["digests"][0] for one in row["digests"]
            )
    training.drop_gradients()
    memory.reset()
    times = []
    for _ in range(case.repeats):
        training.drop_gradients()
        memory.synchronize()
        begin = time.perf_counter()
        step()
        memory.synchronize()
        times.append(time.perf_counter() - begin)
    row["peak"], row["reserved"] = memory.peak(), memory.reserved_peak()
    return row | {"seconds": statistics.median(times), "least_seconds": min(times)}


def digests(training: Training, step: Step) -> list[list[int]]:
    """Returns the digests of the first steps of a training."""
    training.restart()
    found = []
    for _ in range(max(1, training.case.warm_up)):
        training.drop_gradients()
        found.append(training.digest(step()))
    return found


def reported(report: Any, counted_here: bool) -> dict[str, Any]:
    """Returns what the report of a planned step says."""
    found: dict[str, Any] = {
        "predicted": report.predicted_peak_bytes,
        "reported": report.measured_peak_bytes,
    }
    names = {
        "arena": "arena_height_bytes",
        "graphed": "graphed",
        "no_device_graph": "no_device_graph",
        "fallbacks": "fallbacks",
        "moved_out": "moved_out_bytes",
        "moved_in": "moved_in_bytes",
        "waited_ns": "waited_ns",
    }
    found |= {
        ours: getattr(report, theirs) for ours, theirs in names.items() if hasattr(report, theirs)
    }
    if found.get("arena") and counted_here:
        # Between steps the arena holds the memory of a step.
        found["peak"] = report.measured_peak_bytes
    return found


def budget_of(case: Case, memory: DeviceMemory) -> int:
    """Returns the budget in bytes, or 0 for a way that takes none."""
    if case.way not in WITH_BUDGET:
        return 0
    return case.budget or int(case.budget_share * (case.limit or memory.total() or 0))


def trains(case: Case, memory: DeviceMemory, batch: int) -> str:
    """Tries two steps at a batch within the limit. Returns "" or the reason why it failed."""
    limit = case.limit or memory.total()
    try:
        training = Training(case, memory.device, batch, turn)
        step, _ = WAYS[case.way](training, budget_of(case, memory))
        memory.reset()
        for _ in range(2):
            training.drop_gradients()
            step()
        memory.synchronize()
    except (torch.OutOfMemoryError, MemoryError) as error:  # A BudgetError is a MemoryError.
        return reason_of(error)
    except RuntimeError as error:
        if "out of memory" not in str(error) and "no plan" not in str(error):
            raise
        return reason_of(error)
    peak = memory.peak()
    if not memory.can_limit and limit is not None and peak > limit:
        return f"its peak of {peak:,} B is above the limit"
    return ""


def search(case: Case, memory: DeviceMemory) -> dict[str, Any]:
    """Doubles the batch until it fails, then halves the gap down to an eighth of the batch."""
    begin = time.perf_counter()
    largest, smallest_failed, reason, tries = 0, 0, "", 0
    batch = case.batch
    with memory.limited(case.limit):
        while batch > largest and (not smallest_failed or batch < smallest_failed):
            if time.perf_counter() - begin > case.seconds:
                break
            tries += 1
            found = trains(case, memory, batch)
            gc.collect()
            torch._dynamo.reset()
            memory.reset()
            if found:
                smallest_failed, reason = batch, found
            else:
                largest = batch
            if not smallest_failed:
                batch = 2 * batch
            elif largest == 0:
                batch = batch // 2
            elif smallest_failed - largest <= max(1, largest // 8):
                break
            else:
                batch = (largest + smallest_failed) // 2
    return {
        "largest": largest,
        "smallest_failed": smallest_failed or None,
        "reason": reason,
        "tries": tries,
    }


def reason_of(error: BaseException) -> str:
    """Returns the first sentence of an error, for a cell of a table."""
    inner = getattr(error, "inner_exception", None) or error
    if isinstance(inner, reprise.BudgetError) and "no plan" in str(inner):
        return f"no plan; {inner.requested:,} B would do" if inner.requested else "no plan"
    if isinstance(inner, reprise.BudgetError):
        return f"refused: {inner.requested:,} B more than the {inner.live:,} B that were live"
    text = str(inner).strip().splitlines()
    first = text[0] if text else ""
    if isinstance(inner, torch.OutOfMemoryError):
        return "out of memory: " + first.removeprefix("CUDA out of memory. ").split(". ")[0][:90]
    return f"{type(inner).__name__}: {first[:140]}"


def can_go_on(error: Exception) -> bool:
    """Returns whether the device is surely sound after an error."""
    inner = getattr(error, "inner_exception", None) or error
    return isinstance(inner, (reprise.BudgetError, reprise.InputError, torch.OutOfMemoryError))


def main() -> None:
    if sys.argv[1] == "--about":
        device = use_device(*sys.argv[2:])
        print(json.dumps(machine(device) | {"total": DeviceMemory(device).total()}))
        return
    cases = [Case(**one) for one in json.loads(sys.argv[1])]
    if cases[0].deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    memory: DeviceMemory | None = None
    training: Training | None = None
    for case in cases:
        row: dict[str, Any] = {}
        go_on = True
        try:
            memory = memory or DeviceMemory(use_device(case.device, case.sim_library))
            if case.search:
                row = search(case, memory)
            else:
                if training is None or case.way not in CAPTURING:
                    training = None  # Its memory is free before the next one takes any.
                    training = Training(case, memory.device, case.batch, turn)
                with memory.limited(case.limit):
                    row = measure(case, memory, training)
        except Exception as error:
            row["failed"], go_on = reason_of(error), can_go_on(error)
        print(json.dumps(row), flush=True)
        if not go_on:
            return  # gpu.py starts another process for the cases that are left.


if __name__ == "__main__":
    main()
