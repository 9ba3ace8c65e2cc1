"""Trains a small network in a pipeline of processes, each within a budget.

torchrun --nproc-per-node 2 examples/python/pipeline.py --budget 85% --compare
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

MICRO_BATCHES, ROWS, WIDTH = 8, 2048, 128


def join_group() -> None:
    """Joins the processes that torchrun has started, or makes a group of this process alone."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo", timeout=timedelta(minutes=2))
    else:
        alone = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=alone, rank=0, world_size=1)


def network() -> list[nn.Module]:
    torch.manual_seed(0)
    blocks = [
        nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        for _ in range(11)
    ]
    return [*blocks, nn.Linear(WIDTH, 10)]


def loss_of(scores: Any, labels: Any) -> Any:
    """The losses of the micro-batches are summed, so each is divided by the whole batch."""
    return nn.functional.cross_entropy(scores, labels, reduction="sum") / ROWS


def batch(step: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(ROWS, WIDTH, generator=generator)
    return x, torch.randint(0, 10, (ROWS,), generator=generator)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--budget", default="85%", help="of each rank: bytes, or a share")
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--compare", action="store_true", help="train in one process, too")
    asked = options.parse_args()
    join_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()

    # A run of stages for each rank. Only the first rank has inputs, and only the last one labels.
    whole = network()
    first, end = len(whole) * rank // ranks, len(whole) * (rank + 1) // ranks
    part = nn.Sequential(*whole[first:end])
    plain = nn.Sequential(*copy.deepcopy(whole)) if asked.compare else None
    del whole
    is_first, is_last = rank == 0, rank == ranks - 1
    x, labels = (tensor[: ROWS // MICRO_BATCHES].clone() for tensor in batch(0))
    step = reprise.pipeline(
        [part],
        x if is_first else None,
        micro_batches=MICRO_BATCHES,
        loss=loss_of,
        target=labels if is_last else None,
        budget=asked.budget,
        time_limit=3,
    )
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1, momentum=0.9)
    losses = None
    for number in range(asked.steps):
        x, labels = batch(number)
        optimizer.zero_grad()
        if is_first:
            losses = step.step(x, target=labels if is_last else None)
        else:
            losses = step.step(target=labels if is_last else None)
        optimizer.step()

    report = step.report()
    text = f"rank {rank}: peak {report.measured_peak_bytes:,} of {report.budget_bytes:,} bytes"
    text += f", predicted {report.predicted_peak_bytes:,}"
    if losses is not None:
        text += f", loss {losses.sum().item():.4f}"
    if plain is not None:
        train_in_one_process(plain, asked.steps)
        pairs = zip(part.parameters(), list(plain[first:end].parameters()), strict=True)
        same = all(torch.equal(p, q) for p, q in pairs)
        text += f", {'equal to one process bit by bit' if same else 'NOT equal to one process'}"
    print(text, flush=True)
    dist.destroy_process_group()


def train_in_one_process(model: nn.Sequential, steps: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(steps):
        optimizer.zero_grad()
        x, labels = batch(number)
        for a, b in zip(x.chunk(MICRO_BATCHES), labels.chunk(MICRO_BATCHES), strict=True):
            loss_of(model(a), b).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
