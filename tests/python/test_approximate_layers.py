"""XConv, compressed saved tensors, machines of finite depth, convert(): formulas and bias."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any, Literal

import pytest
import reprise
import torch
from torch import nn
from torch.nn import functional as F


def images(count: int) -> tuple[Any, Any]:
    """Returns pictures whose class is where they are bright."""
    y = torch.randint(0, 4, (count,))
    x = torch.randn(count, 3, 8, 8)
    x[torch.arange(count), :, y * 2, y * 2] += 4
    return x, y


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.LeakyReLU(),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.GELU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 4),
    )


def trained(net: nn.Module, scope: Callable[[], Any] | None = None, steps: int = 80) -> float:
    """Returns the share of right answers after a training."""
    torch.manual_seed(1)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(steps):
        x, y = images(64)
        optimizer.zero_grad()
        if scope is None:
            loss = F.cross_entropy(net(x), y)
        else:
            with scope():
                loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    x, y = images(1000)
    return float((net.eval()(x).argmax(1) == y).float().mean())


# --- XConv ----------------------------------------------------------------------------------------


def gradients(layer: Any, x: Any, g: Any) -> tuple[Any, Any, Any]:
    layer.zero_grad()
    leaf = x.clone().requires_grad_()
    layer(leaf).backward(g)
    return leaf.grad, layer.weight.grad, layer.bias.grad


@pytest.mark.parametrize(
    "options",
    [
        {"padding": 1},
        {"stride": 2, "padding": (2, 1)},
        {"dilation": 2},
        {"groups": 2, "padding": 1},
    ],
    ids=str,
)
def test_xconv_is_right_in_the_mean(options: Any) -> None:
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, 3, **options)
    other = reprise.nn.XConv2d.of(plain, probes=4)
    x = torch.randn(3, 4, 9, 8)
    g = torch.randn_like(plain(x))
    exact = gradients(plain, x, g)
    assert torch.equal(plain(x), other(x))
    estimates = []
    for _ in range(500):
        found = gradients(other, x, g)
        assert torch.equal(found[0], exact[0]) and torch.equal(found[2], exact[2])
        estimates.append(found[1].clone())
    mean, deviation = torch.stack(estimates).mean(0), torch.stack(estimates).std(0)
    # Five deviations of a mean of 500; with 216 weights the largest of normal ones is at 3.
    assert float(((mean - exact[1]).abs() / (deviation / math.sqrt(500))).max()) < 5
    # The variance that the header states.
    bound = (
        2
        / 4
        * sum(
            (g[s].square().sum((1, 2)).view(-1, 1) * x[s].square().sum((1, 2)).max())
            for s in range(3)
        )
    )
    assert bool((deviation.square().flatten(1) < bound * 1.2).all())


def test_xconv_keeps_few_numbers_and_repeats() -> None:
    kept: list[Any] = []
    layer = reprise.nn.XConv2d(16, 8, 3, padding=1, probes=8)
    x = torch.randn(4, 16, 24, 24)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):  # type: ignore[func-returns-value]
        y = layer(x)
    assert sum(t.nbytes for t in kept) == 4 * 4 * 16 * 8 + layer.weight.nbytes
    y.sum().backward()
    first = layer.weight.grad
    assert first is not None
    torch.manual_seed(3)
    once = gradients(layer, x, torch.ones_like(y))[1].clone()
    torch.manual_seed(3)
    assert torch.equal(once, gradients(layer, x, torch.ones_like(y))[1])
    assert not torch.equal(once, gradients(layer, x, torch.ones_like(y))[1])
    frozen = copy.deepcopy(layer).requires_grad_(False)
    assert not frozen(x).requires_grad


def test_xconv_trains() -> None:
    torch.manual_seed(0)
    net = network()
    reprise.nn.convert(net, allow="approximate", only=("xconv",), probes=16)
    assert trained(net) > 0.9


# --- Saved tensors in fewer bits ------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 4, 2])
@pytest.mark.parametrize("stochastic", [False, True])
def test_compressed_gradients_follow_the_formula(bits: int, stochastic: bool) -> None:
    """A linear layer's weight gradient uses the decoded input, whose error has a bound."""
    torch.manual_seed(0)
    layer, x, g = nn.Linear(64, 32), torch.randn(128, 64), torch.randn(128, 32)
    with reprise.nn.compressed(layer, bits=bits, stochastic=stochastic, smallest=1) as kept:
        y = layer(x)
    assert torch.equal(y, layer(x))
    y.backward(g)
    assert layer.weight.grad is not None
    # The input that the gradient was computed from, by least squares.
    decoded = torch.linalg.lstsq(g.double().T, layer.weight.grad.double()).solution
    projected = torch.linalg.lstsq(g.double().T, (g.T @ x).double()).solution
    assert float((decoded - projected).abs().max()) < kept.largest_error * 3
    assert kept.largest_error < (1 if stochastic else 0.5) * 9 / (2**bits - 1)
    assert kept.plain_bytes == x.nbytes
    assert kept.kept_bytes == x.numel() * bits // 8 + 8 * x.numel() // 256


@pytest.mark.parametrize("bits", [8, 4])
def test_olive_gradients_use_what_was_decoded(bits: int) -> None:
    """Outliers stay, their neighbours become zero, and the error is the one that was found."""
    torch.manual_seed(0)
    layer, g = nn.Linear(64, 64), torch.eye(64)
    x = torch.randn(64, 64)
    x[::9, 10] = 40
    with reprise.nn.compressed(layer, bits=bits, codec="olive", smallest=1) as kept:
        y = layer(x)
    assert torch.equal(y, layer(x))
    y.backward(g)
    assert layer.weight.grad is not None
    decoded = layer.weight.grad  # g.T @ x
    assert float((decoded - x).abs().max()) == pytest.approx(kept.largest_error, rel=1e-6)
    assert kept.kept_bytes == x.numel() * bits // 8 + 4 * x.numel() // 256 + 8
    assert bool((decoded[::9, 10] > 30).all())
    victims = decoded[::9, 11] == 0
    assert bool(victims.all()) or bits == 8  # 8 bits reach 40 without an outlier, more coarsely


def test_compressed_gradients_are_right_in_the_mean_with_random_rounding() -> None:
    torch.manual_seed(0)
    layer, x, g = nn.Linear(64, 32), torch.randn(128, 64), torch.randn(128, 32)
    found = []
    for seed in range(300):
        layer.zero_grad()
        with reprise.nn.compressed(layer, bits=2, stochastic=True, seed=1000 * seed, smallest=1):
            y = layer(x)
        y.backward(g)
        assert layer.weight.grad is not None
        found.append(layer.weight.grad.clone())
    every = torch.stack(found)
    error = (every.mean(0) - g.T @ x).abs() / (every.std(0) / math.sqrt(300))
    assert float(error.max()) < 5.5


def test_compressed_keeps_less_and_leaves_weights_alone() -> None:
    reprise.install_cpu_allocator()
    torch.manual_seed(0)
    net = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(6)))
    x = torch.randn(4096, 64)

    def kept(bits: int | None) -> int:
        before = reprise.live_bytes()
        if bits is None:
            y = net(x)
        else:
            with reprise.nn.compressed(net, x, bits=bits) as scope:
                y = net(x)
            # Each tanh's result is the next layer's input: saved twice, encoded once.
            assert scope.plain_bytes == 6 * x.nbytes
        return reprise.live_bytes() - before - y.nbytes

    plain, eight, four = kept(None), kept(8), kept(4)
    assert eight < 0.32 * (plain + x.nbytes)
    assert four < 0.17 * (plain + x.nbytes)


def test_compressed_in_scopes_and_as_a_layer() -> None:
    torch.manual_seed(0)
    x = torch.randn(512, 16, requires_grad=True)
    layer = reprise.nn.Compressed(
        nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()), bits=8, smallest=1
    )
    plain = torch.autograd.grad(layer.module(x).sum(), x)[0]
    found = torch.autograd.grad(layer(x).sum(), x)[0]
    assert not torch.equal(plain, found)
    torch.testing.assert_close(plain, found, atol=2e-3, rtol=0)
    scope = reprise.nn.compressed()
    with scope, pytest.raises(reprise.InputError, match="open already"), scope:
        pass
    wrong = x.detach().clone()
    wrong[0, 0] = math.inf
    with reprise.nn.compressed(smallest=1) as kept:
        (wrong.requires_grad_() ** 2).sum()
    assert math.isnan(kept.largest_error)


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("codec", ["range", "olive"])
def test_compressed_trains(bits: int, codec: Literal["range", "olive"]) -> None:
    torch.manual_seed(0)
    net = network()
    at_random = codec == "range"
    found = trained(
        net, lambda: reprise.nn.compressed(net, bits=bits, stochastic=at_random, codec=codec)
    )
    assert found > 0.9


# --- Machines of finite depth ---------------------------------------------------------------------


PLAIN: dict[str, Any] = {
    "relu": F.relu,
    "leaky-relu": F.leaky_relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


@pytest.mark.parametrize("activation", PLAIN)
def test_a_machine_is_a_network_with_all_shortcuts(activation: str) -> None:
    torch.manual_seed(0)
    machine = reprise.nn.FiniteDepth([5, 7, 4, 6], activation=activation, whole=True).double()
    x = torch.randn(3, 2, 5, dtype=torch.double)

    def plain(x: Any) -> Any:
        z = x
        for w, b in zip(machine.weights, machine.biases, strict=True):
            z = torch.cat([z, PLAIN[activation](F.linear(z, w, b))], -1)
        return z

    found = []
    for call in (plain, machine):
        leaf = x.clone().requires_grad_()
        z = call(leaf)
        wanted = [leaf, *machine.parameters()]
        found.append([z.detach(), *torch.autograd.grad((z.cos() * z).sum(), wanted)])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)
    machine.whole = False
    assert torch.equal(machine(x), found[1][0][..., -6:])
    leaf = x.clone().requires_grad_()
    assert torch.autograd.gradcheck(machine, [leaf])


def test_a_machine_keeps_one_buffer_and_trains() -> None:
    torch.manual_seed(0)
    kept: list[int] = []

    def note(tensor: Any) -> Any:
        if tensor.shape[0] == 100:
            kept.append(tensor.nbytes)
        return tensor.detach()  # An output that its own backward holds would live for good.

    machine = reprise.nn.FiniteDepth([8] + [16] * 10, whole=True)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        machine(torch.randn(100, 8))
    assert sum(kept) == 100 * 168 * 4
    net = nn.Sequential(nn.Flatten(), reprise.nn.FiniteDepth([192, 32, 32, 4]))
    assert trained(net) > 0.9


# --- Conversion -----------------------------------------------------------------------------------


def test_convert_replaces_what_is_allowed() -> None:
    torch.manual_seed(0)
    net = network()
    plain, names = copy.deepcopy(net), list(net.state_dict())
    found = reprise.nn.convert(net)
    assert [(one.path, one.kind, one.exactness) for one in found] == [
        ("1", "in-place-abn", "rounding")
    ]
    assert "BatchNorm2d" in found[0].before and "InPlaceABN" in found[0].after
    x, y = images(16)
    F.cross_entropy(net(x), y).backward()
    F.cross_entropy(plain(x), y).backward()
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, atol=1e-5, rtol=1e-4)
    more = reprise.nn.convert(net, allow="approximate", bits=4, probes=2)
    assert [one.kind for one in more] == ["xconv", "xconv", "few-bit"]
    assert list(net.state_dict()) == names
    assert torch.equal(net.eval()(x), plain.eval()(x))


def test_convert_leaves_alone_what_it_cannot_do() -> None:
    shared = nn.GELU()
    hooked = nn.Tanh()
    hooked.register_forward_hook(lambda *_: None)
    net = nn.ModuleDict(
        {
            "a": nn.Sequential(nn.BatchNorm2d(4), nn.ReLU(), shared),
            "b": nn.Sequential(nn.BatchNorm2d(4), nn.LeakyReLU(0.0), shared, hooked),
            "c": nn.Conv2d(3, 4, 3, padding="same"),
            "d": nn.Softplus(beta=2),
        }
    )
    found = reprise.nn.convert(net, allow="approximate")
    assert [one.path for one in found] == ["a.2"]
    a: Any = net["a"]
    b: Any = net["b"]
    assert a[2] is b[2]


def test_errors() -> None:
    with pytest.raises(reprise.InputError, match="'rounding' or 'approximate'"):
        reprise.nn.convert(network(), allow="bitwise")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="there are in-place-abn"):
        reprise.nn.convert(network(), only=("olive",))
    with pytest.raises(reprise.InputError, match="say allow='approximate'"):
        reprise.nn.convert(network(), only=("xconv",))
    with pytest.raises(reprise.InputError, match="8, 4 or 2"):
        reprise.nn.compressed(bits=3)
    with pytest.raises(reprise.InputError, match="OliVe's has 8 or 4, not 2"):
        reprise.nn.compressed(bits=2, codec="olive")
    with pytest.raises(reprise.InputError, match="leave stochastic out"):
        reprise.nn.compressed(stochastic=True, codec="olive")
    with pytest.raises(reprise.InputError, match='"range" or "olive", not "gzip"'):
        reprise.nn.compressed(codec="gzip")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="multiple of 16"):
        reprise.nn.Compressed(nn.Tanh(), group=100)
    with pytest.raises(reprise.InputError, match="not a str"):
        reprise.nn.compressed("model")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="at least one probe"):
        reprise.nn.XConv2d(3, 4, 3, probes=0)
    with pytest.raises(reprise.InputError, match="paddings of zeros"):
        reprise.nn.XConv2d(3, 4, 3, padding="same")
    with pytest.raises(reprise.InputError, match="samples x channels"):
        reprise.nn.XConv2d(3, 4, 3)(torch.randn(3, 8, 8))
    with pytest.raises(reprise.InputError, match="at least two blocks"):
        reprise.nn.FiniteDepth([3])
    with pytest.raises(reprise.InputError, match="there are relu"):
        reprise.nn.FiniteDepth([3, 4], activation="gelu")
    with pytest.raises(reprise.InputError, match="columns"):
        reprise.nn.FiniteDepth([3, 4])(torch.randn(2, 5))
