"""A loop with Accelerate inside a budget leaves the bits of the plain loop."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import reprise
import torch
from conftest import run_snippets
from torch import nn

accelerate = pytest.importorskip("accelerate", reason="needs accelerate: make test-integrations")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Accelerate keeps its settings for the process."""
    accelerate.state.AcceleratorState._reset_state(True)
    yield
    accelerate.state.AcceleratorState._reset_state(True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32))
            for _ in range(8)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(x)
        return result


def train(budget: Any, mode: Any = "auto", batch: int = 64, **options: Any) -> dict[str, Any]:
    """Runs the loop of Accelerate's guide, with or without a budget."""
    from reprise.integrations.accelerate import train_step

    accelerate.state.AcceleratorState._reset_state(True)
    torch.manual_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, **options)
    model: Any = Net()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler: Any = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    rows = torch.randn(7 * batch, 32), torch.randint(0, 10, (7 * batch,))
    data: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows), batch)
    model, optimizer, scheduler, data = accelerator.prepare(model, optimizer, scheduler, data)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss.detach()

    run: Any = step
    if budget is not None:
        run = train_step(accelerator, step, budget=budget, mode=mode, time_limit=2)
    losses, norms, peaks = [], [], []
    for x, y in data:
        with accelerator.accumulate(model):
            reprise.reset_peak()
            losses.append(run(x, y).item())
            peaks.append(reprise.peak_bytes())
            if accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    return {
        "numbers": (losses, norms, scheduler.get_last_lr()),
        "parameters": [p.detach().clone() for p in model.parameters()],
        "random": torch.get_rng_state(),
        "peak": max(peaks),
        "report": run.report() if budget is not None else None,
    }


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    tensors = [*zip(a["parameters"], b["parameters"], strict=True), (a["random"], b["random"])]
    return a["numbers"] == b["numbers"] and all(torch.equal(x, y) for x, y in tensors)


@pytest.mark.parametrize("mode", ["auto", "follow", "graph", "chain", "online"])
def test_accumulation_clipping_and_schedules(mode: str) -> None:
    expected = train(None, gradient_accumulation_steps=2)
    assert all(norm > 0 for norm in expected["numbers"][1])
    found = train(2**30, mode, gradient_accumulation_steps=2)
    assert same(found, expected)
    assert found["report"].mode == ("follow" if mode == "auto" else mode)


SHARES = [("follow", 70), ("graph", 50), ("chain", 50), ("online", 70)]


@pytest.mark.parametrize(("mode", "share"), SHARES)
def test_half_of_the_memory_above_parameters(mode: str, share: int) -> None:
    reprise.install_cpu_allocator()
    gc.collect()  # Trainers of earlier tests are circles of references.
    held = reprise.live_bytes()
    expected = train(None, batch=1024)
    gc.collect()
    # The optimizer's state is twice the parameters, and it stays.
    held += 3 * sum(p.nbytes for p in expected["parameters"]) + 7 * 1024 * (32 * 4 + 8)
    budget = held + (expected["peak"] - held) * share // 100
    found = train(budget, mode, batch=1024)
    assert same(found, expected)
    assert found["report"].mode == mode
    assert found["report"].measured_peak_bytes <= budget


@pytest.mark.parametrize("mode", ["follow", "graph", "online"])
def test_mixed_precision(mode: str) -> None:
    expected = train(None, mixed_precision="bf16")
    assert same(train(2**30, mode, mixed_precision="bf16"), expected)


@pytest.mark.parametrize("mode", ["auto", "graph"])
def test_the_divisor_of_the_loss_may_change(mode: Any) -> None:
    """A replay would divide by the number of the capture if it were not compared."""
    from reprise.integrations.accelerate import train_step

    accelerator = accelerate.Accelerator(cpu=True)
    model = accelerator.prepare(Net())
    x, y = torch.randn(8, 32), torch.randint(0, 10, (8,))
    model.eval()  # no dropout, so that two calls are equal

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss.detach()

    run = train_step(accelerator, step, budget=2**30, mode=mode, time_limit=2)
    run(x, y)
    whole = model.head.weight.grad.clone()
    model.zero_grad()
    accelerator.gradient_accumulation_steps = 2
    run(x, y)
    assert torch.equal(model.head.weight.grad, whole / 2)
    assert run.report().kinds == 2


def test_the_page() -> None:
    accelerator = accelerate.Accelerator(cpu=True)
    net: Any = Net()
    model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1))
    data = [(torch.randn(8, 32), torch.randint(0, 10, (8,)))] * 2
    names = {"accelerator": accelerator, "model": model, "optimizer": optimizer, "data": data}
    run_snippets("docs/integrations/accelerate.md", {"torch": torch, **names})
