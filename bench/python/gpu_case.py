"""One row of the GPU benchmark, in a process of its own. gpu.py starts it with the case as JSON.

The last line of its output is the row as JSON: what was measured, or why it was not. With --about
and a device it is what the page says of the machine.
"""

from __future__ import annotations

import contextlib
import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from device_memory import DeviceMemory, machine, use_device
from gpu_networks import GPU_NETWORKS, on_device
from networks import Tensors
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass
class Case:
    """A case says what to run.

    Attributes:
        way: The name of the way to train, a key of WAYS.
        share: The share of the activations that torch.compile is told to keep, or None.
        budget: Reprise's budget in bytes; or 0, and then it is `budget_share` of the limit.
        limit: The bytes that the device's allocator may take, or None for all.
        search: Whether to search the largest batch that trains within the limit.
        seconds: The time after which a search makes no further try.
        plan_seconds: The time limit of a search for a plan in graph mode.
    """

    network: str
    precision: str
    batch: int
    way: str
    device: str
    quick: bool = False
    share: float | None = None
    budget: int = 0
    budget_share: float = 0.9
    limit: int | None = None
    search: bool = False
    seconds: float = 300.0
    warm_up: int = 3
    repeats: int = 5
    plan_seconds: float = 10.0
    backend: str = "inductor"
    sim_library: str = ""


class Training:
    """A network on the device, and the step of plain training."""

    def __init__(self, case: Case, device: torch.device, batch: int) -> None:
        self.case = case
        torch.manual_seed(0)
        self.network = on_device(GPU_NETWORKS[case.network][0](batch, case.quick), device)
        self.half = case.precision == "bfloat16"

    def autocast(self) -> Any:
        if not self.half:
            return contextlib.nullcontext()
        return torch.autocast(self.network.x.device.type, torch.bfloat16)

    def forward(self, x: torch.Tensor, run: Callable[..., Tensors]) -> torch.Tensor:
        values: Tensors = (x,)
        for stage in self.network.stages:
            values = run(stage, *values)
        return values[-1]

    def step(self, output: Callable[[], torch.Tensor]) -> torch.Tensor:
        with self.autocast():
            loss = F.cross_entropy(output(), self.network.y)
        loss.backward()
        return loss.detach()

    def drop_gradients(self) -> None:
        self.network.module.zero_grad()

    def digest(self, loss: torch.Tensor) -> list[int]:
        """Returns a sum over the bits of the loss and of all gradients, which the device computes.

        Each word counts with another odd weight, so that a word that differs shows, and so do words
        that have changed places.
        """
        gradients = [p.grad for p in self.network.module.parameters() if p.grad is not None]
        sums = [bits_sum(tensor.detach()) for tensor in (loss, *gradients)]
        return [int(one) for one in torch.stack(sums).cpu()]


def bits_sum(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.contiguous().view(kinds[tensor.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in bits.split(1 << 22):
        weights = torch.arange(1, 2 * part.numel(), 2, device=tensor.device)
        total = 31 * total + (part * (weights * weights + 2)).sum()
    return total


Step = Callable[[], torch.Tensor]
# Makes the step, and something whose report() has the predicted peak, or None.
Way = Callable[[Training, int], tuple[Step, Any]]


def plainly(stage: Any, *values: torch.Tensor) -> Tensors:
    result: Tensors = stage(*values)
    return result


def eager(training: Training, _budget: int) -> tuple[Step, Any]:
    x = training.network.x
    return lambda: training.step(lambda: training.forward(x, plainly)), None


def checkpointed(training: Training, _budget: int) -> tuple[Step, Any]:
    def run(stage: Any, *values: torch.Tensor) -> Tensors:
        result: Tensors = checkpoint(stage, *values, use_reentrant=False)
        return result

    x = training.network.x
    return lambda: training.step(lambda: training.forward(x, run)), None


def compiled(training: Training, _budget: int) -> tuple[Step, Any]:
    import torch._functorch.config as config

    if training.case.share is not None:
        config.activation_memory_budget = training.case.share
    torch._dynamo.reset()
    x = training.network.x
    forward = torch.compile(
        lambda: training.forward(x, plainly), backend=training.case.backend, dynamic=False
    )
    return lambda: training.step(forward), None


def chain_mode(training: Training, budget: int) -> tuple[Step, Any]:
    network = training.network

    def as_stage(stage: Any, first: bool) -> Callable[[Any], Tensors]:
        def run(values: Any) -> Tensors:
            with training.autocast():
                result: Tensors = stage(values) if first else stage(*values)
                return result

        return run

    def loss(out: Tensors) -> torch.Tensor:
        with training.autocast():
            return F.cross_entropy(out[-1], network.y)

    planned = reprise.remat(
        [as_stage(stage, n == 0) for n, stage in enumerate(network.stages)],
        network.x,
        budget=budget or None,
        module=network.module,
        output_held=False,
        loss=loss,
    )
    planned.plan_for(network.x)
    return lambda: training.step(lambda: planned(network.x)[-1]), planned


def graph_mode(training: Training, budget: int, device_graph: bool = False) -> tuple[Step, Any]:
    network = training.network

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with training.autocast():
            loss = F.cross_entropy(training.forward(x, plainly), y)
        loss.backward()
        return loss.detach()

    captured = reprise.capture(step, network.x, network.y, modules=[network.module])
    training.drop_gradients()
    captured.plan(
        budget=budget or None,
        time_limit=training.case.plan_seconds,
        device_graph=device_graph,
    )
    return lambda: captured(network.x, network.y), captured


def device_graph_mode(training: Training, budget: int) -> tuple[Step, Any]:
    return graph_mode(training, budget, device_graph=True)


def online_mode(training: Training, budget: int) -> tuple[Step, Any]:
    if training.network.x.device.type != "cpu":
        raise reprise.InputError("online mode works on the CPU only")
    online = reprise.online(budget=budget or None)
    step, _ = eager(training, budget)

    def run() -> torch.Tensor:
        with online:
            return step()

    return run, None


WAYS: dict[str, Way] = {
    "eager": eager,
    "checkpoint per stage": checkpointed,
    "torch.compile": compiled,
    "Reprise, chain": chain_mode,
    "Reprise, graph": graph_mode,
    "Reprise, device graph": device_graph_mode,
    "Reprise, online": online_mode,
}


def measure(case: Case, memory: DeviceMemory) -> dict[str, Any]:
    """Returns the figures of a row."""
    with memory.limited(case.limit):
        training = Training(case, memory.device, case.batch)
        level = memory.live()
        budget = case.budget or int(case.budget_share * (case.limit or memory.total() or 0))
        begin = time.perf_counter()
        step, planned = WAYS[case.way](training, budget if case.way.startswith("Reprise") else 0)
        row: dict[str, Any] = {"prepare_s": time.perf_counter() - begin, "level": level}
        if case.way.startswith("Reprise"):
            row["budget"] = budget
        row["digests"] = []
        for _ in range(max(1, case.warm_up)):
            training.drop_gradients()
            row["digests"].append(training.digest(step()))
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
        if planned is not None:
            report = planned.report()
            row["predicted"] = report.predicted_peak_bytes
            row["reported"] = report.measured_peak_bytes
            row["arena"] = report.arena_height_bytes
            row["graphed"], row["no_device_graph"] = report.graphed, report.no_device_graph
            row["fallbacks"] = report.fallbacks
            if report.arena_height_bytes and memory.counted_here:
                # Between steps the arena holds the memory of a step.
                row["peak"] = report.measured_peak_bytes
        row |= {"seconds": statistics.median(times), "least_seconds": min(times)}
        return row


def trains(case: Case, memory: DeviceMemory, batch: int) -> str:
    """Tries two steps at a batch within the limit. Returns "" or the reason why it failed."""
    limit = case.limit or memory.total()
    budget = int(case.budget_share * (limit or 0))
    try:
        training = Training(case, memory.device, batch)
        step, _ = WAYS[case.way](training, budget if case.way.startswith("Reprise") else 0)
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
        return "out of memory: " + first.split(". ")[0].removeprefix("CUDA out of memory")[:90]
    return f"{type(inner).__name__}: {first[:140]}"


def main() -> None:
    if sys.argv[1] == "--about":
        device = use_device(*sys.argv[2:])
        print(json.dumps(machine(device) | {"total": DeviceMemory(device).total()}))
        return
    case = Case(**json.loads(sys.argv[1]))
    row: dict[str, Any] = {}
    try:
        memory = DeviceMemory(use_device(case.device, case.sim_library))
        row = search(case, memory) if case.search else measure(case, memory)
    except Exception as error:
        row["failed"] = reason_of(error)
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
