"""Planned stages whose linear layers and convolutions two ranks share out."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
if not torch.distributed.is_available():
    pytest.skip("PyTorch was built without torch.distributed", allow_module_level=True)
import reprise  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from two_ranks import run_ranks  # noqa: E402

ROWS, WIDTH, STEPS, TIMEOUT = 256, 32, 2, 20.0


class Perceptron(nn.Module):
    """Adds two linear layers with a wide middle, or two convolutions, to its input."""

    def __init__(self, convolution: bool = False) -> None:
        super().__init__()
        self.convolution = convolution
        self.inside = (
            nn.Sequential(nn.Conv1d(4, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 4, 3, padding=1))
            if convolution
            else nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH))
        )
        self.after = nn.Sequential(nn.Dropout(0.1), nn.BatchNorm1d(WIDTH))

    def forward(self, x: Any) -> Any:
        y = self.inside(x.view(-1, 4, WIDTH // 4) if self.convolution else x)
        return x + self.after(y.view(-1, WIDTH))


class Attention(nn.Module):
    """Adds an attention to its input, which it takes for sequences of 16 elements."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.register_buffer("mask", torch.triu(torch.ones(16, 16, dtype=torch.bool), 1))

    def forward(self, x: Any) -> Any:
        y = self.norm(x).view(-1, 16, WIDTH)
        y, _ = self.attention(y, y, y, need_weights=False, attn_mask=self.mask)
        return x + y.reshape(-1, WIDTH)


def network() -> nn.Sequential:
    first = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, Perceptron(), Perceptron(True), Attention(), Perceptron())


def loss_of(y: Any) -> Any:
    return y.square().mean()


def train(net: Any, model: Any, check: Any = None) -> list[Any]:
    """Returns what the steps leave."""
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    torch.manual_seed(4)
    found = []
    for _ in range(STEPS):
        x = torch.randn(ROWS, WIDTH, generator=generator)
        optimizer.zero_grad()
        loss = loss_of(model(x))
        loss.backward()
        if check is not None:
            check()
        found += [loss.detach(), *[p.grad.clone() for p in net.parameters()]]
        optimizer.step()
    return [*found, *[t.detach().clone() for t in [*net.parameters(), *net.buffers()]]]


def options_of(model: Any) -> set[str]:
    plan = model.planned.plan
    return {action.variant for action in plan.actions if action.kind == "run"}


def smallest_budget(model: Any, sample: Any) -> int:
    model.set_budget(1000)
    with pytest.raises(reprise.BudgetError) as refused:
        model.plan_for(sample)
    return int(refused.value.requested)


def check_refusals(rank: int) -> None:
    with pytest.raises(reprise.InputError, match="no stage has work"):
        plain = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        reprise.remat(plain, torch.zeros(4, 8), process_group=dist.group.WORLD)
    with pytest.raises(reprise.InputError, match="given different ones"):
        x = torch.full((ROWS, WIDTH), float(rank))
        reprise.remat(network(), x, process_group=dist.group.WORLD)


def two_ranks(rank: int) -> None:
    reprise.install_cpu_allocator()
    check_refusals(rank)
    torch.manual_seed(1)
    net = network()
    image = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    expected = train(net, net)
    if rank == 1:  # The ranks get the bits of rank 0.
        image = {name: torch.zeros_like(tensor) for name, tensor in image.items()}
    net.load_state_dict(image)
    sample = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(9))
    options: dict[str, Any] = {"loss": loss_of, "output_held": False}
    model = reprise.remat(net, sample, process_group=dist.group.WORLD, **options)
    # Shared stages hold half of the wide middle, so the smallest budget needs them.
    stages = {stage.name: {o.name: o for o in stage.options} for stage in model.chain.stages}
    assert [("shared" in own) for own in stages.values()] == [False, True, True, True, True]
    for own in list(stages.values())[1:]:
        assert own["shared"].exactness == "rounding"
        assert own["shared"].saved_bytes < own["keep"].saved_bytes
    budget = smallest_budget(model, sample) + 2 * sample.nbytes  # The loop has batches of its own.
    model.set_budget(budget)
    model.plan_for(sample)
    assert "shared" in options_of(model)

    def check() -> None:
        report: Any = model.report()
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        assert report.measured_peak_bytes <= report.budget_bytes

    found = train(net, model, check)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    for tensor in found:  # Both ranks have the same bits.
        others = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(others, tensor.contiguous())
        assert torch.equal(others[0], others[1])
    # Within that budget there is no plan that shares nothing.
    alone = reprise.remat(net, sample, **options)
    assert smallest_budget(alone, sample) > budget


def test_two_ranks() -> None:
    run_ranks(two_ranks, timeout=TIMEOUT)
