"""InPlace-ABN from Python: bits, rounding, loaded weights, memory, and a training."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import reprise
import torch
from torch import nn
from torch.nn import functional as F

PLAIN: dict[str, Any] = {
    "leaky_relu": lambda: nn.LeakyReLU(0.01),
    "elu": nn.ELU,
    "identity": nn.Identity,
}


def error(plain: Any, other: Any) -> float:
    return float((plain - other).abs().max() / plain.abs().max().clamp(min=1e-30))


@pytest.mark.parametrize("activation", PLAIN)
@pytest.mark.parametrize("training", [True, False])
def test_it_is_a_batch_norm_and_its_activation(activation: Any, training: bool) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(6)
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([1.0, -1.0, 0.5, -2.0, 0.0, 1e-5]))  # of any sign
        norm.bias.normal_()
    plain = nn.Sequential(norm, PLAIN[activation]()).train(training)
    other = reprise.nn.InPlaceABN(6, activation=activation).train(training)
    other.load_state_dict(norm.state_dict())
    x, g = torch.randn(8, 6, 9, 9), torch.randn(8, 6, 9, 9)
    found = []
    for layer, parts in ((plain, norm), (other, other)):
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        y.backward(g)
        assert leaf.grad is not None and parts.weight.grad is not None
        found.append((y.detach(), leaf.grad, parts.weight.grad, parts.bias.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert all(error(a, b) < 3e-6 for a, b in zip(found[0], found[1], strict=True))
    for name, buffer in norm.named_buffers():
        assert torch.equal(buffer, dict(other.named_buffers())[name])


def test_options_of_batch_norms() -> None:
    x = torch.randn(16, 4, 7)
    options: list[dict[str, Any]] = [
        {"affine": False},
        {"momentum": None},
        {"track_running_stats": False},
        {"eps": 0.1, "momentum": 0.5},
    ]
    for option in options:
        plain = nn.Sequential(nn.BatchNorm1d(4, **option), nn.LeakyReLU(0.01))
        other = reprise.nn.InPlaceABN(4, **option)
        for _ in range(3):
            assert torch.equal(plain(x), other(x.requires_grad_()))
        assert torch.equal(plain.eval()(x), other.eval()(x))


def test_sharing_copies_and_autocast() -> None:
    norm = nn.BatchNorm2d(4)
    shared = reprise.nn.InPlaceABN.of(norm, "elu", 0.5)
    assert shared.weight is norm.weight and shared.running_mean is norm.running_mean
    x = torch.randn(2, 4, 5, 5, requires_grad=True)
    assert torch.equal(copy.deepcopy(shared)(x), F.elu(copy.deepcopy(norm)(x), 0.5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = shared(x.bfloat16())
    assert y.dtype == torch.bfloat16
    y.sum().backward()
    assert norm.weight.grad is not None


def test_memory_of_a_network() -> None:
    """A norm, its activation and the next convolution keep one tensor in place of two."""
    reprise.install_cpu_allocator()

    def kept(abn: bool) -> float:
        def block() -> list[nn.Module]:
            conv = nn.Conv2d(8, 8, 1, bias=False)
            if abn:
                return [reprise.nn.InPlaceABN(8), conv]
            return [nn.BatchNorm2d(8), nn.LeakyReLU(0.01, inplace=True), conv]

        net = nn.Sequential(*(layer for _ in range(8) for layer in block()))
        x = torch.randn(8, 8, 32, 32)
        y = net(x)  # the first run allocates what stays
        del y
        before = reprise.live_bytes()
        y = net(x)
        kept = reprise.live_bytes() - before
        del y
        return kept / x.nbytes

    plain, other = kept(False), kept(True)
    assert plain > 15.9
    assert other < 9.2


def test_a_training_converges() -> None:
    found = []
    for abn in (False, True):
        torch.manual_seed(4)

        def block(size: int, abn: bool = abn) -> list[nn.Module]:
            conv = nn.Conv2d(size, 12, 3, padding=1, bias=False)
            if abn:
                return [conv, reprise.nn.InPlaceABN(12)]
            return [conv, nn.BatchNorm2d(12), nn.LeakyReLU(0.01)]

        net = nn.Sequential(
            *block(1), *block(12), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 4)
        )
        optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
        torch.manual_seed(5)
        for _ in range(60):
            y = torch.randint(0, 4, (64,))
            x = torch.randn(64, 1, 8, 8)
            x[torch.arange(64), 0, y * 2, y * 2] += 6
            optimizer.zero_grad()
            loss = F.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
        found.append(float(loss.detach()))
    assert found[1] < 0.5
    assert abs(found[0] - found[1]) < 0.05


def test_errors() -> None:
    with pytest.raises(reprise.InputError, match="no inverse"):
        reprise.nn.InPlaceABN(4, activation="relu")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="above 0"):
        reprise.nn.InPlaceABN(4, parameter=0.0)
    with pytest.raises(reprise.InputError, match="guard"):
        reprise.nn.InPlaceABN(4, guard=-1.0)
    layer = reprise.nn.InPlaceABN(4)
    with pytest.raises(reprise.InputError, match="dimension 1 is to be 4"):
        layer(torch.randn(2, 5, 3))
    with pytest.raises(reprise.InputError, match="more than one value"):
        layer(torch.randn(1, 4))
    x = torch.randn(3, 4, requires_grad=True)
    with pytest.raises((reprise.InputError, RuntimeError), match="second derivative"):
        torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
