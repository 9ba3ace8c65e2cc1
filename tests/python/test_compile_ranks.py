"""The backend of torch.compile under DDP and FSDP2: the bits of the same step without it."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch.distributed")

import reprise
import torch
import torch.distributed as dist
from torch import nn
from two_ranks import run_ranks


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(32, 128) for _ in range(3))
        self.narrow = nn.ModuleList(nn.Linear(128, 32) for _ in range(3))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for wide, narrow in zip(self.wide, self.narrow, strict=True):
            y = wide(x)
            x = x + self.drop(narrow(y * torch.sigmoid(y)))
        return x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def gradients_of(net: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3 + dist.get_rank())
    found: list[torch.Tensor] = []
    for _ in range(2):
        net.zero_grad(set_to_none=True)
        loss = net(x).square().mean()
        loss.backward()
        found.append(loss.detach())
        for parameter in net.parameters():
            gradient = parameter.grad
            assert gradient is not None
            whole = getattr(gradient, "full_tensor", gradient.clone)
            found.append(whole())
    return found


def expect_same_bits_and_plans(
    plain: nn.Module, planned: nn.Module, x: torch.Tensor, seen: list[reprise.CompiledGraph]
) -> None:
    expected, found = gradients_of(plain, x), gradients_of(planned, x)
    assert all(map(torch.equal, expected, found))
    recomputed = 0
    for graph in seen:
        assert graph.result.plan is not None
        recomputed += graph.result.plan.peak_bytes < graph.result.baseline.peak_bytes
    assert recomputed >= 1  # In some graph the budget asked for another plan than the plain one.


def made() -> Net:
    torch.manual_seed(0)
    return Net()


def in_two_ranks(rank: int) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(10 + rank)
    x = torch.randn(512, 32)
    seen: list[reprise.CompiledGraph] = []
    options: dict[str, Any] = {
        "budget": "80%",
        "time_limit": 1.0,
        "threads": 1,
        "observer": seen.append,
    }

    compiled: Any = torch.compile(
        DistributedDataParallel(made()), backend=reprise.backend, options=options
    )
    expect_same_bits_and_plans(DistributedDataParallel(made()), compiled, x, seen)

    torch._dynamo.reset()
    seen.clear()
    plain, planned = made(), made()
    for block in planned.blocks:
        block.compile(backend=reprise.backend, options=options)
    for net in (plain, planned):
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    expect_same_bits_and_plans(plain, planned, x, seen)


def test_ddp_and_fsdp2_have_the_bits_of_the_same_step_without_the_backend() -> None:
    run_ranks(in_two_ranks)
