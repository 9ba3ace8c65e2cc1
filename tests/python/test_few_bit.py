"""Few-bit activations from Python: the exact formula, what is kept, and trainings that converge."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import reprise
import torch
from torch import nn


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("name", ["gelu", "silu", "mish", "softplus", "tanh"])
def test_gradients_are_levels_times_gradients(name: str, bits: int) -> None:
    boundaries, levels = reprise.nn.few_bit_table(name, bits=bits)
    assert len(levels) == 2**bits == len(boundaries) + 1
    x, g = 3 * torch.randn(40, 37), torch.randn(40, 37)
    leaf = x.clone().requires_grad_()
    reprise.nn.few_bit(leaf, name, bits=bits).backward(g)  # type: ignore[no-untyped-call]
    step = torch.bucketize(x, torch.tensor(boundaries), right=True)
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, torch.tensor(levels)[step] * g)


def test_only_steps_are_kept() -> None:
    kept: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.append(tensor)
        return tensor

    x = torch.randn(1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = reprise.nn.FewBit("gelu", bits=3)(x)
    assert [t.nbytes for t in kept] == [3 * 125]
    assert torch.equal(result, nn.functional.gelu(x))


def train(make: Callable[[], nn.Module], seed: int) -> float:
    """Trains a small classifier and returns its share of right answers on other data."""
    torch.manual_seed(seed)
    activations = [make() for _ in range(2)]
    model = nn.Sequential(
        nn.Linear(8, 64), activations[0], nn.Linear(64, 64), activations[1], nn.Linear(64, 2)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.randn(count, 8)
        return x, (x[:, 0] * x[:, 1] + x[:, 2].sin() > 0).long()

    for _ in range(300):
        x, y = data(256)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    x, y = data(4000)
    return float((model(x).argmax(1) == y).float().mean())


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_a_training_converges(bits: int) -> None:
    plain = train(nn.GELU, 0)
    found = train(lambda: reprise.nn.FewBit("gelu", bits=bits), 0)
    assert plain > 0.9
    assert found > plain - 0.03


def test_errors() -> None:
    with pytest.raises(reprise.InputError, match="there are gelu, "):
        reprise.nn.FewBit("relu")
    with pytest.raises(reprise.InputError, match="1 to 5"):
        reprise.nn.FewBit("gelu", bits=6)
    with pytest.raises(reprise.InputError, match="2 bits"):
        reprise.nn.few_bit(torch.ones(2), "regelu2", bits=3)
    with pytest.raises(reprise.InputError, match="real numbers"):
        reprise.nn.few_bit(torch.arange(3))
    x = torch.ones(3, requires_grad=True)
    with pytest.raises((reprise.InputError, RuntimeError), match="second derivative"):
        torch.autograd.grad(reprise.nn.few_bit(x).sum(), x, create_graph=True)
