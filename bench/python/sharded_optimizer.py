"""Compares sharded optimizer state with the whole state on each rank, and with PyTorch's own class.

Two processes train one GPT with AdamW in four ways: DistributedDataParallel with the whole state or
with ZeroRedundancyOptimizer, and captured steps without and with `shard_optimizer`. All four must
have the same losses and parameters, bit by bit. A peak is that of all bytes of tensors in the
process while one way alone is there. Times are medians over rounds in which each way does one step.
The traffic is that of the loopback of Linux, which all ranks share.

    torchrun --nproc-per-node 2 bench/python/sharded_optimizer.py --rounds 15
"""

from __future__ import annotations

import argparse
import gc
import pathlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import reprise
import torch
import torch.distributed as dist
from networks import next_tokens, plain_gpt, step_of
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

VOCABULARY, WIDTH, LENGTH, LAYERS, ROWS, WARM = 2048, 256, 64, 6, 8, 3


def batch(number: int) -> tuple[Any, Any]:
    return next_tokens(VOCABULARY, (ROWS, LENGTH), 1000 * number + dist.get_rank())


@dataclass
class Way:
    """One way to train: the model, its optimizer, and a step that updates the parameters.

    Attributes:
        steps: The number of steps so far.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    call: Callable[..., Any]
    steps: int = 0
    losses: list[Any] = field(default_factory=list)

    def step(self) -> float:
        """Does one step from barrier to barrier, and returns its seconds."""
        data = batch(self.steps)
        dist.barrier()
        begin = time.perf_counter()
        loss = self.call(*data)
        dist.barrier()
        seconds = time.perf_counter() - begin
        self.losses.append(loss.item())
        self.steps += 1
        return seconds


def with_ddp(zero: bool) -> Way:
    torch.manual_seed(1)
    model = plain_gpt(VOCABULARY, WIDTH, LENGTH, LAYERS)
    ddp = DDP(model, broadcast_buffers=False, gradient_as_bucket_view=True)
    optimizer: Any = (
        ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
        if zero
        else torch.optim.AdamW(model.parameters(), lr=1e-3)
    )
    step = step_of(ddp)

    def call(*data: Any) -> Any:
        loss = step(*data).detach()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return Way(model, optimizer, call)


def captured(shard: bool) -> Way:
    torch.manual_seed(1)
    model = plain_gpt(VOCABULARY, WIDTH, LENGTH, LAYERS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = reprise.capture(
        step_of(model),
        *batch(0),
        process_group=dist.group.WORLD,
        optimizer=optimizer,
        shard_optimizer=shard,
        lockstep="never",
    )
    step.plan(time_limit=3)
    return Way(model, optimizer, step)


WAYS: dict[str, Callable[[], Way]] = {
    "DDP, AdamW": lambda: with_ddp(zero=False),
    "DDP, ZeroRedundancyOptimizer": lambda: with_ddp(zero=True),
    "captured, optimizer inside": lambda: captured(shard=False),
    "captured, `shard_optimizer`": lambda: captured(shard=True),
}


def state_bytes(optimizer: Any) -> int:
    own = getattr(optimizer, "optim", optimizer)  # The optimizer inside ZeroRedundancyOptimizer.
    return sum(t.nbytes for fields in own.state.values() for t in fields.values())


def received() -> int:
    """Returns the bytes that have come over the loopback."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    return 0


def memory(name: str) -> tuple[int, int, float]:
    """Returns the bytes of state, those at the peak, and the traffic in bytes of parameters."""
    way = WAYS[name]()
    for _ in range(WARM):
        way.step()
    dist.barrier()
    time.sleep(0.2)
    before = received()
    reprise.reset_peak()
    way.step()
    peak = reprise.peak_bytes()
    time.sleep(0.2)
    traffic = received() - before
    parameters = sum(p.nbytes for p in way.model.parameters())
    return state_bytes(way.optimizer), peak, traffic / parameters


def all_ranks(number: float) -> list[float]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, number)
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--rounds", type=int, default=15)
    rounds = asked.parse_args().rounds
    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()
    rows = {}
    for name in WAYS:
        state, peak, traffic = memory(name)
        rows[name] = [all_ranks(state), all_ranks(peak), traffic]
        gc.collect()
    ways = {name: make() for name, make in WAYS.items()}
    for way in ways.values():
        for _ in range(WARM):
            way.step()
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(way.step())
    first, *others = ways.values()
    for other in others:
        assert first.losses == other.losses
        both = zip(first.model.parameters(), other.model.parameters(), strict=True)
        assert all(torch.equal(p, q) for p, q in both)
    if dist.get_rank() == 0:
        parameters = sum(p.nbytes for p in first.model.parameters())
        print(f"{parameters:,} bytes of parameters, losses and parameters equal bit by bit")
        print("| way | state, bytes a rank | peak, bytes a rank | traffic | step |")
        print("|---|---|---|---|---|")
        for name, (states, peaks, traffic) in rows.items():
            print(
                f"| {name} | {', '.join(f'{s:,}' for s in states)} "
                f"| {', '.join(f'{p:,}' for p in peaks)} | {traffic:.2f} "
                f"| {1e3 * statistics.median(times[name]):.0f} ms |",
                flush=True,
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
