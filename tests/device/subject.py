"""Small models with their steps, and the modes in which the device suite trains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from networks import Embed, GptBlock, conv_norm
from torch import nn
from torch.nn import functional as F

HOST_MEMORY = ("chain, host memory", "graph, host memory")
OTHER_DEVICE = "graph, another device"
MODES = (
    "chain",
    HOST_MEMORY[0],
    "graph",
    "graph, device graph",
    HOST_MEMORY[1],
    OTHER_DEVICE,
    "graph, updates inside",
    "online",
)
MODELS = ("dense", "convolutions", "attention", "attention, bfloat16")
# Bandwidths by hand, higher than any machine's, so that a plan prefers a move to a second run.
FAST = 10**13
FAST_HOST = {
    "format": "reprise.machine",
    "version": 1,
    "memories": [{"name": "device"}, {"name": "host"}],
    "channels": [
        {"from": "device", "to": "host", "bytes_per_second": FAST},
        {"from": "host", "to": "device", "bytes_per_second": FAST},
    ],
}


@dataclass
class Subject:
    """A model with its batch, as stages and as a step."""

    model: nn.Sequential
    x: torch.Tensor
    y: torch.Tensor
    half: bool

    def output(self, model: Callable[[Any], Any], x: torch.Tensor) -> Any:
        if not self.half:
            return model(x)
        with torch.autocast(x.device.type, torch.bfloat16):
            return model(x)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(self.output(self.model, x).float(), y)
        loss.backward()
        return loss.detach()


def make(name: str, device: torch.device, large: bool) -> Subject:
    """Returns a model. The same name and size give the same weights on every device."""
    torch.manual_seed(1)
    if name == "dense":
        width, rows = (2048, 8192) if large else (96, 512)
        blocks: list[nn.Module] = [
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1)) for _ in range(6)
        ]
        model = nn.Sequential(*blocks, nn.Linear(width, 10))
        x, y = torch.randn(rows, width), torch.randint(10, (rows,))
    elif name == "convolutions":
        width, rows, side = (64, 64, 96) if large else (8, 8, 16)
        inside, blocks = 3, []
        for _ in range(5):
            blocks.append(nn.Sequential(*conv_norm(inside, width, 3), nn.ReLU()))
            inside = width
        head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(width, 10))
        model = nn.Sequential(*blocks, head)
        x, y = torch.randn(rows, 3, side, side), torch.randint(10, (rows,))
    else:
        width, rows, length = (512, 16, 512) if large else (32, 4, 32)
        embed = Embed(64, width, length)
        blocks = [nn.Sequential(GptBlock(width), nn.Dropout(0.1)) for _ in range(4)]
        head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 64), nn.Flatten(0, 1))
        model = nn.Sequential(embed, *blocks, head)
        x, y = torch.randint(64, (rows, length)), torch.randint(64, (rows * length,))
    half = name.endswith("bfloat16")
    return Subject(model.to(device), x.to(device), y.to(device), half)


class Runner:
    """One mode on one subject."""

    def __init__(self, mode: str, subject: Subject, device: torch.device) -> None:
        self.mode, self.subject = mode, subject
        self.device_graph = mode == "graph, device graph" and device.type == "cuda"
        self.optimizer: torch.optim.Optimizer | None = None
        self.planned: Any = None
        host = mode in HOST_MEMORY
        self.offload = "host" if host else None
        self.machine: dict[str, Any] | None = FAST_HOST if host else None
        if mode == "graph, updates inside":
            self.optimizer = self.new_optimizer()
        if mode.startswith("chain"):
            stages = [lambda x, s=stage: subject.output(s, x) for stage in subject.model]
            self.planned = reprise.remat(
                stages,
                subject.x,
                module=subject.model,
                loss=lambda out: F.cross_entropy(out.float(), subject.y),
                output_held=False,
                offload=self.offload,
                machine=self.machine,
            )
        elif mode.startswith("graph"):
            self.planned = reprise.capture(
                subject.step,
                subject.x,
                subject.y,
                modules=[subject.model],
                optimizer=self.optimizer,
                other_devices=["cpu"] if mode == OTHER_DEVICE else [],
            )
        if mode == OTHER_DEVICE:
            self.plan("100%")
            self.machine = self.planned.machine()
            assert self.machine is not None
            for channel in self.machine["channels"]:
                channel["bytes_per_second"] = FAST

    def new_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.subject.model.parameters(), lr=0.1, momentum=0.9)

    def plan(self, budget: int | str, arena: bool = True) -> int:
        """Plans, and returns the predicted peak. Raises BudgetError if there is no plan."""
        if not self.mode.startswith("graph"):
            self.planned.set_budget(budget)
            result = self.planned.plan_for(self.subject.x)
        else:
            result = self.planned.plan(
                budget=budget,
                time_limit=2.0,
                arena=arena,
                device_graph=self.device_graph,
                offload=self.offload,
                machine=self.machine,
            )
        assert result.plan is not None  # No plan is a BudgetError.
        return result.plan.peak_bytes

    def plan_least(self) -> int:
        """Plans for the smallest budget that a plan is found for, and returns the peak."""
        budget = 1
        for _ in range(6):  # A search with a time limit may miss what the one before has found.
            try:
                return self.plan(budget)
            except reprise.BudgetError as error:
                budget = max(error.requested, int(1.03 * budget))
        raise RuntimeError(f"no plan was found for {budget} B, although a search named less")

    def run(self) -> torch.Tensor:
        subject = self.subject
        if not self.mode.startswith("graph"):
            loss = F.cross_entropy(self.planned(subject.x).float(), subject.y)
            loss.backward()
            return loss.detach()
        return self.planned(subject.x, subject.y)
