"""Trains a small network on several processes, each within a budget, with the bits of DDP.

torchrun --nproc-per-node 2 examples/python/data_parallel.py --budget 70% --compare
torchrun --nproc-per-node 2 examples/python/data_parallel.py --shard-optimizer --compare
"""

from __future__ import annotations

import argparse
import copy
import os
from datetime import timedelta
from typing import Any

import reprise
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def join_group() -> None:
    """Joins the processes that torchrun has started, or makes a group of this process alone."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    else:
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=alone, rank=0, world_size=1)


def network() -> nn.Module:
    blocks = [
        nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 128))
        for _ in range(6)
    ]
    return nn.Sequential(*blocks, nn.Linear(128, 10))


def batch(step: int) -> tuple[Any, Any]:
    """Returns the rows of this rank."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return (
        torch.randn(1024, 128, generator=generator),
        torch.randint(0, 10, (1024,), generator=generator),
    )


def train(step: Any, optimizer: Any, steps: int) -> list[Any]:
    """Trains as with DDP: the step leaves averages in `.grad`.

    `optimizer` is None if the step updates the parameters itself.
    """
    torch.manual_seed(100 + dist.get_rank())  # Each rank drops out for itself.
    losses = []
    for number in range(steps):
        if optimizer is not None:
            optimizer.zero_grad()
        losses.append(step(*batch(number)).detach().clone())
        if optimizer is not None:
            optimizer.step()
    return losses


def step_of(model: nn.Module) -> Any:
    def step(x: Any, y: Any) -> Any:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return step


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--budget", default="70%", help="of each rank: bytes, or a share")
    options.add_argument("--steps", type=int, default=10)
    options.add_argument(
        "--shard-optimizer", action="store_true", help="updates in the step, each rank its own"
    )
    options.add_argument("--compare", action="store_true", help="train with DDP, too")
    asked = options.parse_args()
    join_group()
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    model = network()
    plain = copy.deepcopy(model)

    # In place of DDP(model): the step of this rank is recorded, and its gradients are averaged.
    optimizer = torch.optim.AdamW(model.parameters())
    step = reprise.capture(
        step_of(model),
        *batch(0),
        process_group=dist.group.WORLD,
        optimizer=optimizer if asked.shard_optimizer else None,
        shard_optimizer=asked.shard_optimizer,
    )
    step.plan(budget=asked.budget, time_limit=3)
    losses = train(step, None if asked.shard_optimizer else optimizer, asked.steps)

    report = step.report()
    text = f"rank {dist.get_rank()}: loss {losses[-1].item():.4f}, peak "
    text += f"{report.measured_peak_bytes:,} of {report.budget_bytes:,} bytes"
    text += f", state of {len(optimizer.state)} parameters"
    if asked.compare:
        ddp = DDP(plain, broadcast_buffers=False)
        step_of(ddp)(*batch(0))  # DDP has its own buckets from its second step on.
        expected = train(step_of(ddp), torch.optim.AdamW(plain.parameters()), asked.steps)
        both = zip(model.parameters(), plain.parameters(), strict=True)
        same = all(map(torch.equal, losses, expected)) and all(torch.equal(p, q) for p, q in both)
        text += f", {'equal to DDP bit by bit' if same else 'NOT equal to DDP'}"
    print(text, flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
