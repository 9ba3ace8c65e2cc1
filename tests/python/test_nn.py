"""Element-wise functions in tiles: what they keep, how exact they are, and what they refuse."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import reprise
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

Function = Callable[..., Any]

FUNCTIONS: dict[str, Function] = {
    "tanh-gelu": lambda x: x * 0.5 * (1 + (0.7978845608 * (x + 0.044715 * x**3)).tanh()),
    "swish": lambda x: x * x.sigmoid(),
    "mish": lambda x: x * F.softplus(x).tanh(),
    "hard-swish": lambda x: x * F.relu6(x + 3) / 6,
    "silu": F.silu,
    "elu": F.elu,
    "rsqrt": lambda x: (x * x + 1).rsqrt(),
}
# Whole tiles, tails of several lengths, less than a tile, sizes that two threads divide unevenly.
SIZES = (1, 13, 4096, 65_536, 65_549, 200_003, 3 * 65_536)


def both(fn: Function, tiled: Function, *inputs: Any, gradient: Any = None) -> tuple[Any, Any]:
    """Returns the result and the gradients of a function, and those of its tiled form."""
    found = []
    for call in (fn, tiled):
        given = [x.detach().requires_grad_(x.is_floating_point()) for x in inputs]
        result = call(*given)
        by = torch.ones_like(result) if gradient is None else gradient
        wanted = [x for x in given if x.requires_grad]
        found.append([result.detach(), *torch.autograd.grad(result, wanted, by)])
    return found[0], found[1]


def error(plain: Any, other: Any) -> float:
    """Returns the largest error of a gradient relative to the largest gradient."""
    plain, other = plain.double(), other.double()
    return float((plain - other).abs().max() / plain.abs().max().clamp(min=1e-30))


def same(plain: list[Any], other: list[Any]) -> bool:
    return all(
        torch.equal(a, b) and a.stride() == b.stride() for a, b in zip(plain, other, strict=True)
    )


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(1)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_in_tile_is_bitwise(name: str, dtype: torch.dtype) -> None:
    fn = FUNCTIONS[name]
    tiled = reprise.nn.InTile(fn)
    for size in SIZES:
        torch.manual_seed(size)
        x, g = (2 * torch.randn(size)).to(dtype), torch.randn(size).to(dtype)
        assert same(*both(fn, tiled, x, gradient=g)), size


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("dtype", "bound"),
    [(torch.float32, 2.5e-7), (torch.float64, 5e-16), (torch.bfloat16, 2e-2)],
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_ad_is_exact_up_to_rounding(name: str, dtype: torch.dtype, bound: float) -> None:
    fn = FUNCTIONS[name]
    tiled = reprise.nn.ForwardAD(fn)
    for size in SIZES:
        torch.manual_seed(size)
        x, g = (2 * torch.randn(size)).to(dtype), torch.randn(size).to(dtype)
        plain, other = both(fn, tiled, x, gradient=g)
        assert torch.equal(plain[0], other[0]), size
        assert error(plain[1], other[1]) < bound, size


@pytest.mark.parametrize(
    ("storage", "bound"), [(torch.float16, 6e-4), (torch.bfloat16, 5e-3), (torch.int8, 1e-2)]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_fewer_bits_are_approximate(
    name: str, storage: torch.dtype, bound: float, threads: int
) -> None:
    fn = FUNCTIONS[name]
    tiled = reprise.nn.ForwardAD(fn, storage=storage)
    for size in SIZES:
        torch.manual_seed(size)
        x, g = 2 * torch.randn(size), torch.randn(size)
        plain, other = both(fn, tiled, x, gradient=g)
        if storage == torch.int8 and threads > 1:  # Blocks with one scale cut a thread's range.
            assert error(plain[0], other[0]) < 2.5e-7, size
        else:
            assert torch.equal(plain[0], other[0]), size
        assert error(plain[1], other[1]) < bound, size


def test_eight_bits_bound_each_block() -> None:
    """The documented bound: 1/254 of the largest derivative among 256 neighbours. Zero is zero."""
    scale = torch.logspace(-6, 6, 300_000)
    scale[1000:1600] = 0
    x = torch.ones(300_000, requires_grad=True)
    reprise.nn.ForwardAD(lambda x, s: x * s, storage=torch.int8)(x, scale).sum().backward()
    assert x.grad is not None
    apart = (x.grad - scale).abs()
    largest = scale.unfold(0, 256, 256).amax(1).repeat_interleave(256)
    assert bool((apart[: largest.numel()] <= largest / 254 * 1.001).all())
    assert bool((x.grad[1024:1536] == 0).all())


BROADCASTS = {
    "bias": ((300, 999), (999,)),
    "channels": ((6, 5, 49, 31), (5, 1, 1)),
    "both": ((257, 1), (1, 300)),
    "scalar": ((70_001,), ()),
    "one": ((70_001,), (1,)),
    "small first": ((40,), (3000, 40)),
    "long rows": ((3, 150_001), (150_001,)),
}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
@pytest.mark.parametrize("shapes", BROADCASTS)
def test_broadcast_inputs(shapes: str, module: str) -> None:
    def fn(x: Any, b: Any) -> Any:
        return (x + b) * (x * b).sigmoid() + b.tanh()

    torch.manual_seed(3)
    x, b = (torch.randn(shape, dtype=torch.float64) for shape in BROADCASTS[shapes])
    tiled = getattr(reprise.nn, module)(fn)
    g = torch.randn(fn(x, b).shape, dtype=torch.float64)
    plain, other = both(fn, tiled, x, b, gradient=g)
    for a, c in zip(plain, other, strict=True):
        assert a.shape == c.shape
        assert error(a, c) < 1e-12


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_layouts_are_kept(module: str) -> None:
    fn = FUNCTIONS["swish"]
    tiled = getattr(reprise.nn, module)(fn)
    base = torch.randn(4, 6, 32, 130)
    layouts = {
        "channels last": base.contiguous(memory_format=torch.channels_last),
        "transposed": base.transpose(1, 3),
        "sliced": base[:, 1:5, ::2, 3:],
        "expanded": base[:, :1].expand(4, 6, 32, 130),
        "flipped batch": base[::2],
    }
    for name, x in layouts.items():
        plain, other = both(fn, tiled, x, gradient=None)
        assert plain[0].stride() == other[0].stride(), name
        torch.testing.assert_close(other, plain, msg=name)
        g = torch.randn(130, 32, 6, 4).permute(3, 2, 1, 0)[: x.shape[0], : x.shape[1], : x.shape[2]]
        if x.shape == g.shape:
            torch.testing.assert_close(*both(fn, tiled, x, gradient=g), msg=name)


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_masks_and_constants_get_no_gradient(module: str) -> None:
    mask, x = torch.rand(1000) > 0.5, torch.randn(1000)
    tiled = getattr(reprise.nn, module)(lambda x, mask, c: x.tanh() * mask * c)
    given = x.clone().requires_grad_()
    tiled(given, mask, torch.full((1000,), 2.0)).sum().backward()
    plain = x.clone().requires_grad_()
    (plain.tanh() * mask * 2).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(given.grad, plain.grad)


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_empty_and_one_number(module: str) -> None:
    tiled = getattr(reprise.nn, module)(FUNCTIONS["swish"])
    for shape in ((0,), (3, 0, 2), ()):
        x = torch.randn(shape, requires_grad=True)
        result = tiled(x)
        assert result.shape == x.shape
        result.sum().backward()
        assert x.grad is not None and x.grad.shape == x.shape


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_a_result_that_does_not_depend_on_an_input(module: str) -> None:
    tiled = getattr(reprise.nn, module)(lambda x, y: x.sign() * y)
    x, y = torch.randn(100, requires_grad=True), torch.randn(100, requires_grad=True)
    tiled(x, y).sum().backward()
    assert x.grad is not None and float(x.grad.abs().max()) == 0
    unused = getattr(reprise.nn, module)(lambda x, y: x.exp())
    unused(x, y).sum().backward()
    torch.testing.assert_close(y.grad, x.detach().sign())


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_no_grad_and_autocast(module: str) -> None:
    def fn(x: Any) -> Any:
        squares = F.mse_loss(x, torch.zeros_like(x), reduction="none")  # autocast makes it float32
        return x * squares.tanh()

    tiled = getattr(reprise.nn, module)(fn)
    x = torch.randn(70_001).bfloat16()
    with torch.no_grad():
        assert torch.equal(tiled(x), fn(x)) and not tiled(x.requires_grad_()).requires_grad
    with torch.inference_mode():
        assert torch.equal(tiled(x), fn(x))
    found = []
    for call in (fn, tiled):
        leaf = x.detach().requires_grad_()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = call(leaf)
        assert result.dtype == torch.float32
        result.sum().backward()  # outside of autocast
        found.append((result.detach(), leaf.grad))
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[1][1], found[0][1])
    assert module == "ForwardAD" or torch.equal(found[0][1], found[1][1])  # type: ignore[arg-type]


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_the_backward_can_run_twice_and_inside_checkpoint(module: str) -> None:
    fn = FUNCTIONS["mish"]
    tiled = getattr(reprise.nn, module)(fn)
    x = torch.randn(100_001, requires_grad=True)
    result = tiled(x).sum()
    first = torch.autograd.grad(result, x, retain_graph=True)[0]
    assert torch.equal(first, torch.autograd.grad(result, x)[0])
    inside = checkpoint(tiled, x, use_reentrant=False)
    assert torch.equal(first, torch.autograd.grad(inside.sum(), x)[0])


def test_bytes_that_are_kept() -> None:
    """Plain training keeps four tensors and the result; the others one, a half or a quarter."""
    n = 1 << 21
    reprise.install_cpu_allocator()
    fn = FUNCTIONS["tanh-gelu"]
    kept = {}
    ways = {
        "plain": fn,
        "derivative": reprise.nn.ForwardAD(fn),
        "operands": reprise.nn.InTile(fn),
        "half": reprise.nn.ForwardAD(fn, storage=torch.float16),
        "eighth": reprise.nn.ForwardAD(fn, storage=torch.int8),
    }
    x = torch.randn(n, requires_grad=True)
    for name, call in ways.items():
        call(x)  # type: ignore[operator]  # tries the function out
        before = reprise.live_bytes()
        reprise.reset_peak()
        result = call(x)  # type: ignore[operator]
        kept[name] = (reprise.live_bytes() - before) / (4 * n)
        above = (reprise.peak_bytes() - reprise.live_bytes()) / (4 * n)
        assert name == "plain" or above < 0.5  # tiles of 1/32 of the tensor
        del result
    assert kept["plain"] >= 4
    assert kept["derivative"] == 2 and kept["operands"] == 1
    assert kept["half"] == 1.5 and kept["eighth"] == pytest.approx(1.25 + 1 / 256)


NATIVE: dict[str, tuple[Function, Function]] = {
    "gelu": (reprise.nn.gelu, F.gelu),
    "gelu tanh": (
        lambda x: reprise.nn.gelu(x, "tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
    ),
    "silu": (reprise.nn.silu, F.silu),
    "swish": (reprise.nn.swish, F.silu),
    "mish": (reprise.nn.mish, F.mish),
    "hardswish": (reprise.nn.hardswish, F.hardswish),
    "swiglu": (reprise.nn.swiglu, lambda a, b: F.silu(a) * b),
    "geglu": (reprise.nn.geglu, lambda a, b: F.gelu(a) * b),
    "GELU": (reprise.nn.GELU(), F.gelu),
    "GELU tanh": (reprise.nn.GELU("tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "SiLU": (reprise.nn.SiLU(keep="operands"), F.silu),
    "Mish": (reprise.nn.Mish(), F.mish),
    "Hardswish": (reprise.nn.Hardswish(keep="operands"), F.hardswish),
    "SwiGLU": (reprise.nn.SwiGLU(), lambda a, b: F.silu(a) * b),
    "GeGLU": (reprise.nn.GeGLU(keep="operands"), lambda a, b: F.gelu(a) * b),
}


@pytest.mark.parametrize("name", NATIVE)
def test_ready_activations_equal_native_ones(name: str) -> None:
    ready, native = NATIVE[name]
    torch.manual_seed(1)
    inputs = [3 * torch.randn(70_001) for _ in range(2 if "glu" in name.lower() else 1)]
    g = torch.randn(70_001)
    plain, other = both(native, ready, *inputs, gradient=g)
    for a, b in zip(plain, other, strict=True):
        assert error(a, b) < 1e-6


def test_modules_are_copied_and_pickled() -> None:
    x = torch.randn(100)
    module = reprise.nn.ForwardAD(nn.Mish(), storage=torch.float16)
    assert torch.equal(copy.deepcopy(module)(x), module(x))
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), module(x))
    ready = reprise.nn.GELU("tanh", storage=torch.float16)
    assert torch.equal(copy.deepcopy(ready)(x), ready(x))
    assert "float16" in repr(ready)
    assert list(nn.Sequential(module, ready).state_dict()) == []


def test_a_captured_step_sees_the_operations() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 512), reprise.nn.Mish(), nn.Linear(512, 10))
    x, y = torch.randn(256, 64), torch.randint(0, 10, (256,))

    def step(x: Any, y: Any) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    loss = step(x, y)
    expected = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    captured = reprise.capture(step, x, y)
    captured.plan()
    assert torch.equal(captured(x, y), loss)
    found = [p.grad for p in model.parameters() if p.grad is not None]
    assert max(error(a, b) for a, b in zip(expected, found, strict=True)) < 1e-6


def test_in_a_planned_chain() -> None:
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 64), reprise.nn.GELU(keep="operands")) for _ in range(4)]
    plain = nn.Sequential(*blocks, nn.Linear(64, 10))
    x, y = torch.randn(2048, 64), torch.randint(0, 10, (2048,))
    F.cross_entropy(plain(x), y).backward()  # type: ignore[no-untyped-call]
    expected = [p.grad.clone() for p in plain.parameters() if p.grad is not None]
    plain.zero_grad()
    planned = reprise.remat(plain, x, budget="80%")
    F.cross_entropy(planned(x), y).backward()  # type: ignore[no-untyped-call]
    found = [p.grad for p in plain.parameters() if p.grad is not None]
    assert all(map(torch.equal, expected, found))


# --- What is refused ------------------------------------------------------------------------------

beta = torch.ones((), requires_grad=True)
