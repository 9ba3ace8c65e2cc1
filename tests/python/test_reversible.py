"""Reversible networks from Python: bits, memory, random state, and what is refused."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import reprise
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inside = nn.Linear(width, 3 * width)
        self.outside = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        parts = (
            self.inside(self.norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        y = F.scaled_dot_product_attention(*parts, dropout_p=0.1 if self.training else 0.0)  # type: ignore[misc]
        return self.outside(y.transpose(1, 2).reshape(batch, length, width))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 2 * width),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(2 * width, width),
    )


def transformer(depth: int, width: int = 16, **options: Any) -> reprise.nn.ReversibleSequence:
    torch.manual_seed(0)
    blocks = (reprise.nn.Reversible(Attention(width), mlp(width)) for _ in range(depth))
    return reprise.nn.ReversibleSequence(*blocks, **{"dim": -1, **options})


def convolution(channels: int) -> nn.Module:
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False)
    )


def step(net: Any, reverse: bool, *inputs: Any) -> list[Any]:
    """Returns results, gradients, buffers and numbers drawn after a step."""
    net = copy.deepcopy(net)
    net.reverse = reverse
    torch.manual_seed(1)
    given = [x.detach().clone().requires_grad_() for x in inputs]
    result = net(*given)
    results = result if isinstance(result, tuple) else (result,)
    sum((y * y.cos()).sum() for y in results).backward()
    gradients = [p.grad for p in net.parameters()] + [x.grad for x in given]
    return [*(y.detach() for y in results), *gradients, *net.buffers(), torch.rand(3)]


def same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_a_transformer_has_the_bits_of_plain_training() -> None:
    net, x = transformer(64), torch.randn(2, 5, 32)
    assert same(step(net, False, x), step(net, True, x))
    first, second = x.chunk(2, -1)
    assert same(step(net, False, first, second), step(net, True, first, second))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions_have_the_bits_of_plain_training(layout: Any) -> None:
    torch.manual_seed(0)
    blocks = (reprise.nn.Reversible(convolution(6), convolution(6)) for _ in range(8))
    net = reprise.nn.ReversibleSequence(*blocks)
    x = torch.randn(4, 12, 8, 8).contiguous(memory_format=layout)
    assert same(step(net, False, x), step(net, True, x))
    assert same(step(net.eval(), False, x), step(net, True, x))


def test_a_block_alone_and_functions_as_branches() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(8, 8)
    block = reprise.nn.Reversible(lambda x: shared(x).sin(), shared)
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    found = []
    for reverse in (False, True):
        block.reverse = reverse
        shared.zero_grad()
        y1, y2 = block(x, y)
        (y1 * y2).sum().backward()
        found.append([y1.detach(), y2.detach(), *(p.grad for p in shared.parameters())])
    assert same(*found)
    torch.testing.assert_close(y1, x + shared(y).sin(), atol=2e-6, rtol=0)


def test_training_goes_on_with_the_same_bits() -> None:
    """Three steps of an optimizer; gradients, statistics and random numbers stay equal."""
    found = []
    for reverse in (False, True):
        net = transformer(3, reverse=reverse)
        optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
        torch.manual_seed(2)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.randn(4, 5, 32)).square().mean().backward()
            optimizer.step()
        found.append([p.detach() for p in net.parameters()])
    assert same(*found)


def test_a_training_converges() -> None:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(8, 32), transformer(2, 16), nn.Linear(32, 2))
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)

    def data(count: int) -> tuple[Any, Any]:
        x = torch.randn(count, 4, 8)
        sizes = x.square().sum(1)
        return x, (sizes[:, 0] > sizes[:, 1]).long()

    for _ in range(200):
        x, y = data(128)
        optimizer.zero_grad()
        F.cross_entropy(net(x).mean(1), y).backward()
        optimizer.step()
    x, y = data(2000)
    assert float((net.eval()(x).mean(1).argmax(1) == y).float().mean()) > 0.85


def peak(depth: int, reverse: bool) -> int:
    """Returns the most bytes of a step above what lived before it, gradients left out."""
    net = transformer(depth, 32, reverse=reverse)
    x = torch.randn(16, 64, 64)
    for p in net.parameters():
        p.grad = torch.zeros_like(p)
    most = 0
    for _ in range(2):
        before = reprise.live_bytes()
        reprise.reset_peak()
        net(x).sum().backward()
        most = reprise.peak_bytes() - before
    return most


def test_memory_does_not_depend_on_depth() -> None:
    reprise.install_cpu_allocator()
    few, many = peak(8, True), peak(64, True)
    assert many == few
    assert many <= peak(2, False)  # 64 blocks in the memory of two


def test_copies_state_and_pickles() -> None:
    net = transformer(2).eval()
    x = torch.randn(2, 3, 32)
    expected = net(x)
    assert torch.equal(copy.deepcopy(net)(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), expected)
    other = transformer(2).eval()
    for p in other.parameters():
        p.data.normal_()
    other.load_state_dict(net.state_dict())
    assert torch.equal(other(x), expected)
    assert "0.f.norm.weight" in net.state_dict()
    assert "fraction_bits=20" in repr(net)
    with torch.no_grad():
        assert torch.equal(net(x), expected)
    with torch.inference_mode():
        assert torch.equal(net(x), expected)


def test_a_branch_is_replaced() -> None:
    net = transformer(1).eval()
    x = torch.randn(2, 3, 32)
    net(x)
    block: Any = net._modules["0"]
    block.f = mlp(16).eval()
    first, second = x.chunk(2, -1)
    y1, _ = net(first, second)
    torch.testing.assert_close(y1, first + block.f(second), atol=2e-6, rtol=0)
    y1.sum().backward()
    assert block.f[1].weight.grad is not None


def test_errors() -> None:
    good = nn.Linear(4, 4)
    with pytest.raises(reprise.InputError, match="at least one block"):
        reprise.nn.ReversibleSequence()
    with pytest.raises(reprise.InputError, match="block 0 is a Linear"):
        reprise.nn.ReversibleSequence(good)  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="'fixed' or 'float'"):
        reprise.nn.Reversible(good, good, streams="int")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="1 to 52"):
        reprise.nn.Reversible(good, good, fraction_bits=53)
    with pytest.raises(reprise.InputError, match="g is no module"):
        reprise.nn.Reversible(good, 3)  # type: ignore[arg-type]
    x = torch.randn(2, 4, requires_grad=True)
    with pytest.raises(reprise.InputError, match="even size"):
        reprise.nn.Reversible(good, good)(torch.randn(2, 5))
    with pytest.raises(reprise.InputError, match="returns a float"):
        reprise.nn.Reversible(good, lambda x: 1.0)(x, x)  # type: ignore[arg-type,return-value]
    with pytest.raises(reprise.InputError, match=r"branch 'g'.*in place"):
        reprise.nn.Reversible(good, nn.ReLU(inplace=True))(x, x)
    with pytest.raises(reprise.InputError, match=r"behind branch 'f'.*\[-2048, 2048\)"):
        reprise.nn.Reversible(lambda x: x * 1e6, good)(x, x)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        reprise.nn.Reversible(good, nn.Linear(3, 4))(x, x)
    y1, _ = reprise.nn.Reversible(good, good)(x, x)
    with pytest.raises((reprise.InputError, RuntimeError), match="second derivative"):
        torch.autograd.grad(y1.sum(), x, create_graph=True)
