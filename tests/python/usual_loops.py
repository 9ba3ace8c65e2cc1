"""Training loops as values: their objects, their step, and all that follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import reprise
import torch
from reprise.integrations.steps import by_kind
from torch import nn

F: Any = nn.functional
Step = Callable[..., Any]
Make = Callable[[], "Loop"]
ROWS, STEPS = 256, 6


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(16, 64), nn.Linear(64, 16)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.drop(self.narrow(F.gelu(self.wide(self.norm(x)))))
        return result


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.head = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x)
        return result


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(ROWS, 16, generator=generator)
    return x, torch.randint(0, 4, (ROWS,), generator=generator)


class Loop:
    """A training loop: its objects, its step, and what follows each step."""

    def __init__(self, kind: Any = torch.optim.SGD, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = Net()
        if kind is torch.optim.SGD:
            options = {"momentum": 0.9} | options
        self.optimizer = kind(self.model.parameters(), **({"lr": 0.05} | options))
        self.schedule: Any = None
        self.scaler: Any = None
        self.average: Any = None

    def batch(self, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        return batch(number)

    def step(self) -> Step:
        model, scaler = self.model, self.scaler

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = F.cross_entropy(model(x), y)
            (loss if scaler is None else scaler.scale(loss)).backward()
            return loss.detach()

        return step

    def after(self, _number: int, _loss: torch.Tensor) -> None:
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, step: Step) -> list[bytes]:
        """Runs the loop, and returns the bytes of all that it has made and changed."""
        torch.manual_seed(1)
        losses = []
        for number in range(STEPS):
            losses.append(step(*self.batch(number)).clone())
            self.after(number, losses[-1])
        return [loss.numpy().tobytes() for loss in losses] + self.state()

    def state(self) -> list[bytes]:
        """Returns the bytes of all that the loop changes."""
        made: list[torch.Tensor] = []
        for module in (self.model, self.average):
            made += [] if module is None else list(module.state_dict().values())
        made += [p.grad for p in self.model.parameters() if p.grad is not None]
        for state in self.optimizer.state.values():
            made += [v for v in state.values() if isinstance(v, torch.Tensor)]
        if self.scaler is not None and self.scaler.is_enabled():
            made += [self.scaler._scale, self.scaler._growth_tracker]
        if self.schedule is not None:
            made.append(torch.tensor(self.schedule.last_epoch))
        made += [torch.tensor(float(group["lr"])) for group in self.optimizer.param_groups]
        return [t.detach().numpy().tobytes() for t in [*made, torch.get_rng_state()]]


class Around(Loop):
    """A loop that is described by what follows each step."""

    def __init__(
        self, follows: Callable[[Loop, int, torch.Tensor], None], *arguments: Any, **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._follows = follows

    def after(self, number: int, loss: torch.Tensor) -> None:
        self._follows(self, number, loss)


class Inside(Loop):
    """A loop whose step does all the rest, too."""

    def __init__(
        self, follows: Callable[[Loop], None], kind: Any = torch.optim.SGD, **options: Any
    ) -> None:
        super().__init__(kind, **options)
        self._follows = follows

    def step(self) -> Step:
        inner, optimizer, follows = super().step(), self.optimizer, self._follows
        parts = self.model, self.schedule, self.scaler, self.average  # The step shows them.

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            optimizer.zero_grad()
            loss = inner(x, y)
            follows(self)
            assert parts
            return loss

        return step

    def after(self, _number: int, _loss: torch.Tensor) -> None:
        pass


def in_mode(way: str, loop: Loop, budget: int) -> Step:
    """Returns the step of a loop inside a budget."""
    step, sample = loop.step(), batch(0)
    if way == "capture":
        captured = reprise.capture(step, *sample)
        captured.plan(budget=budget, time_limit=0.5)
        return captured
    if way in ("train_step", "graph", "online"):
        mode = "auto" if way == "train_step" else way
        return reprise.train_step(step, *sample, budget=budget, mode=mode, time_limit=0.5)
    kind: Any = way.removeprefix("by_kind, ")
    return by_kind(step, budget=budget, mode=kind, time_limit=0.5)
