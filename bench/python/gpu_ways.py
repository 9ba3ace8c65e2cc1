"""The ways to train that the GPU benchmark compares, and what one row of it asks for."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from gpu_networks import GPU_NETWORKS, on_device
from networks import Stage, Tensors
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
        deterministic: Whether PyTorch uses deterministic algorithms.
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
    deterministic: bool = False


class Training:
    """A network on the device, and the step of plain training.

    Attributes:
        turn: Makes the context in which nobody else that shares the device measures.
        optimizer: The optimizer, in the ways that have one inside the step.
        captured: The captured step, once a way has captured it. Later rows plan it anew.
        capture_s: The seconds that the capture took.
    """

    def __init__(
        self,
        case: Case,
        device: torch.device,
        batch: int,
        turn: Callable[[], Any] = contextlib.nullcontext,
    ) -> None:
        self.case, self.turn = case, turn
        torch.manual_seed(0)
        self.network = on_device(GPU_NETWORKS[case.network][0](batch, case.quick), device)
        self.half = case.precision == "bfloat16"
        self.optimizer: torch.optim.Optimizer | None = None
        self.first: list[torch.Tensor] = []
        self.captured: Any = None
        self.capture_s = 0.0
        if case.way in WITH_OPTIMIZER:
            self.optimizer = torch.optim.AdamW(self.network.module.parameters(), lr=1e-4)
            self.first = [each.detach().to("cpu", copy=True) for each in self.parameters()]

    def parameters(self) -> Iterator[torch.Tensor]:
        return self.network.module.parameters()

    def autocast(self) -> Any:
        return autocast(self.network.x.device, self.half)

    def forward(self, x: torch.Tensor, run: Callable[..., Tensors]) -> torch.Tensor:
        return through(self.network.stages, x, run)

    def step(self, output: Callable[[], torch.Tensor]) -> torch.Tensor:
        with self.autocast():
            loss = F.cross_entropy(output(), self.network.y)
        loss.backward()
        return loss.detach()

    def drop_gradients(self) -> None:
        self.network.module.zero_grad()

    def restart(self) -> None:
        """Puts parameters and the state of the optimizer back to the beginning of the training."""
        self.drop_gradients()
        if self.optimizer is None:
            return
        if self.captured is not None:
            self.captured.fetch_optimizer_state()
        with torch.no_grad():
            for parameter, first in zip(self.parameters(), self.first, strict=True):
                parameter.copy_(first)
        for state in self.optimizer.state.values():
            for one in state.values():
                if isinstance(one, torch.Tensor):
                    one.zero_()

    def digest(self, loss: torch.Tensor) -> list[int]:
        """Returns a sum over the bits of what a step makes, which the device computes.

        A step makes the loss and all gradients, or with an optimizer the loss and all parameters.
        Each word counts with another odd weight, so that a word that differs shows, and so do words
        that have changed places.
        """
        made = list(self.parameters())
        if self.optimizer is None:
            made = [each.grad for each in made if each.grad is not None]
        sums = [bits_sum(tensor.detach()) for tensor in (loss, *made)]
        return [int(one) for one in torch.stack(sums).cpu()]


def autocast(device: torch.device, half: bool) -> Any:
    return torch.autocast(device.type, torch.bfloat16) if half else contextlib.nullcontext()


def through(stages: list[Stage], x: torch.Tensor, run: Callable[..., Tensors]) -> torch.Tensor:
    """Returns what the last stage makes of a batch."""
    values: Tensors = (x,)
    for stage in stages:
        values = run(stage, *values)
    return values[-1]


def bits_sum(tensor: torch.Tensor) -> torch.Tensor:
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = tensor.contiguous().view(kinds[tensor.element_size()]).flatten()
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in bits.split(1 << 22):
        weights = torch.arange(1, 2 * part.numel(), 2, device=tensor.device)
        total = 31 * total + (part * (weights * weights + 2)).sum()
    return total


Step = Callable[[], torch.Tensor]
# Makes the step, and something whose report() says more about it, or None.
Way = Callable[[Training, int], tuple[Step, Any]]


def plainly(stage: Any, *values: torch.Tensor) -> Tensors:
    result: Tensors = stage(*values)
    return result


def eager(training: Training, _budget: int) -> tuple[Step, Any]:
    x = training.network.x
    return lambda: training.step(lambda: training.forward(x, plainly)), None


def eager_with_optimizer(training: Training, budget: int) -> tuple[Step, Any]:
    plain, _ = eager(training, budget)
    optimizer = training.optimizer
    assert optimizer is not None

    def step() -> torch.Tensor:
        loss = plain()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, None


def checkpointed(training: Training, _budget: int) -> tuple[Step, Any]:
    def run(stage: Any, *values: torch.Tensor) -> Tensors:
        result: Tensors = checkpoint(stage, *values, use_reentrant=False)
        return result

    x = training.network.x
    return lambda: training.step(lambda: training.forward(x, run)), None


def first_step(training: Training, step: Step) -> None:
    """Runs the step in which PyTorch compiles, or host memory is pinned. That needs no turn."""
    step()
    training.drop_gradients()


def compiled(training: Training, _budget: int) -> tuple[Step, Any]:
    import torch._functorch.config as config

    if training.case.share is not None:
        config.activation_memory_budget = training.case.share
    torch._dynamo.reset()
    x = training.network.x
    forward = torch.compile(
        lambda: training.forward(x, plainly), backend=training.case.backend, dynamic=False
    )

    def step() -> torch.Tensor:
        return training.step(forward)

    first_step(training, step)
    return step, None


def compiled_with_less_overhead(training: Training, _budget: int) -> tuple[Step, Any]:
    torch._dynamo.reset()
    x = training.network.x
    forward = torch.compile(
        lambda: training.forward(x, plainly), mode="reduce-overhead", dynamic=False
    )

    def step() -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return training.step(forward).clone()  # The next step writes over the first loss.

    first_step(training, step)
    return step, None


@dataclass
class CompiledReport:
    """What the backend of torch.compile says of its plan, as far as a row has it."""

    predicted_peak_bytes: int
    measured_peak_bytes: int


class CompiledPlans:
    """Collects what the backend of torch.compile has planned."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []

    def report(self) -> CompiledReport:
        (graph,) = self.graphs
        return CompiledReport(graph.result.plan.peak_bytes, graph.measured_peak_bytes or 0)


def compiled_within(training: Training, budget: int) -> tuple[Step, Any]:
    torch._dynamo.reset()
    network, plans = training.network, CompiledPlans()
    options = {
        "budget": budget,
        "compiler": training.case.backend,
        "margin": "measured",
        "time_limit": training.case.plan_seconds,
        "observer": plans.graphs.append,
    }
    loss_of = torch.compile(
        lambda: F.cross_entropy(training.forward(network.x, plainly), network.y),
        backend=reprise.backend,
        options=options,
        dynamic=False,
    )

    def step() -> torch.Tensor:
        with training.autocast():
            loss: torch.Tensor = loss_of()
        loss.backward()
        return loss.detach()

    first_step(training, step)
    return step, plans


def chain_mode(training: Training, budget: int, offload: str | None = None) -> tuple[Step, Any]:
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

    with training.turn():
        planned = reprise.remat(
            [as_stage(stage, n == 0) for n, stage in enumerate(network.stages)],
            network.x,
            budget=budget or None,
            module=network.module,
            output_held=False,
            loss=loss,
            offload=offload,
        )
        planned.plan_for(network.x)
    return lambda: training.step(lambda: planned(network.x)[-1]), planned


def chain_mode_to_host(training: Training, budget: int) -> tuple[Step, Any]:
    return chain_mode(training, budget, offload="host")


def capture(training: Training) -> Any:
    """Captures the step, with the optimizer in it where there is one."""
    network, half = training.network, training.half
    stages, device = network.stages, network.x.device

    # The step reads nothing of the training, which changes from row to row.
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with autocast(device, half):
            loss = F.cross_entropy(through(stages, x, plainly), y)
        loss.backward()
        return loss.detach()

    optimizer = {} if training.optimizer is None else {"optimizer": training.optimizer}
    with training.turn():
        begin = time.perf_counter()
        captured = reprise.capture(
            step, network.x, network.y, modules=[network.module], **optimizer
        )
        training.capture_s = time.perf_counter() - begin
    training.drop_gradients()
    return captured


def graph_mode(training: Training, budget: int, **options: Any) -> tuple[Step, Any]:
    network = training.network
    if training.captured is None:
        training.captured = capture(training)
    captured = training.captured
    captured.plan(budget=budget or None, time_limit=training.case.plan_seconds, **options)

    def step() -> torch.Tensor:
        loss: torch.Tensor = captured(network.x, network.y)
        return loss

    if "offload" in options:
        first_step(training, step)
    return step, captured


def device_graph_mode(training: Training, budget: int) -> tuple[Step, Any]:
    return graph_mode(training, budget, device_graph=True)


def graph_mode_to_host(training: Training, budget: int) -> tuple[Step, Any]:
    return graph_mode(training, budget, offload="host")


def graph_mode_far_optimizer(training: Training, budget: int) -> tuple[Step, Any]:
    return graph_mode(training, budget, offload="host", offload_optimizer=True)


def online_mode(training: Training, budget: int) -> tuple[Step, Any]:
    online = reprise.online(budget=budget or None, device=training.network.x.device)
    step, _ = eager(training, budget)

    def run() -> torch.Tensor:
        with online:
            return step()

    return run, None


WAYS: dict[str, Way] = {
    "eager": eager,
    "checkpoint per stage": checkpointed,
    "torch.compile": compiled,
    "torch.compile, reduce-overhead": compiled_with_less_overhead,
    "torch.compile, Reprise": compiled_within,
    "Reprise, chain": chain_mode,
    "Reprise, chain, host memory": chain_mode_to_host,
    "Reprise, graph": graph_mode,
    "Reprise, device graph": device_graph_mode,
    "Reprise, graph, host memory": graph_mode_to_host,
    "Reprise, online": online_mode,
    "eager, AdamW": eager_with_optimizer,
    "Reprise, graph, AdamW": graph_mode,
    "Reprise, graph, AdamW, state in host memory": graph_mode_far_optimizer,
}
WITH_BUDGET = {way for way in WAYS if "Reprise" in way}
WITH_OPTIMIZER = {way for way in WAYS if "AdamW" in way}
# Rows of these ways that follow each other share a capture.
CAPTURING = {way for way in WAYS if way.startswith(("Reprise, graph", "Reprise, device graph"))}
