"""Regions that run as one compiled kernel leave plain training's bits, in the predicted bytes.

Every region is compiled by inductor, compared with its calls byte by byte, and refused where a byte
differs.
"""

from __future__ import annotations

import dataclasses
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reprise
import torch
import torch.nn.functional as F
from reprise._capture import regions
from reprise._torch import _runtime
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")

NAME = "fused-regions"
SLOW = 10**12  # nanoseconds
FULL = os.environ.get("REPRISE_TEST_FULL") == "1"


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps what the tests compile away from the user's folder, once for all tests."""
    folder = tmp_path_factory.getbasetemp() / "compiled"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))


class Compiler:
    """The package's compiler, with a look at what it is asked for."""

    def __init__(self, change: Callable[[str], str] = lambda text: text) -> None:
        self.change = change
        self.texts: list[str] = []

    def __call__(self, texts: list[str]) -> list[regions.Compiled]:
        self.texts += texts
        return regions.compile_regions([self.change(text) for text in texts])


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    reprise.capture  # noqa: B018  (sets the package's compiler)
    one = Compiler()
    _runtime.compile_regions_with(one)
    yield one
    regions.offer()


def all_fused(step: reprise.CapturedStep) -> int:
    """Lets the step run fused regions wherever it can, and returns how many it runs."""
    graph = step.graph
    slow = {op for choice in graph.choices for op in choice.realizations[0].ops}
    fused = {
        op
        for choice in graph.choices
        for one in choice.realizations
        if one.name == NAME
        for op in one.ops
    }
    ops = tuple(
        dataclasses.replace(
            op, variants=tuple(dataclasses.replace(v, ns=SLOW) for v in op.variants)
        )
        if op.id in slow - fused
        else op
        for op in graph.ops
    )
    step.plan(time_limit=0.1)
    usual = step.planned.plan
    found = reprise.plan(dataclasses.replace(graph, ops=ops), time_limit=2).plan
    assert usual is not None and found is not None
    timeline = reprise.simulate(graph, dataclasses.replace(found, problem=usual.problem))
    step.use(
        dataclasses.replace(
            found,
            problem=usual.problem,
            baseline=usual.baseline,
            time_ns=timeline.time_ns,
            lower_bound_ns=0,
            termination="feasible",
        )
    )
    return len([one for one in found.actions if one.kind == "run" and one.id in fused])


def plain(step: Callable[..., Any], parameters: list[Tensor], *inputs: Tensor) -> list[Tensor]:
    """Returns the loss and all gradients of a step."""
    for one in parameters:
        one.grad = None
    loss = step(*inputs)
    return [
        loss.detach().clone(),
        *(one.grad.clone() for one in parameters if one.grad is not None),
    ]


def same_bits(a: list[Tensor], b: list[Tensor]) -> bool:
    """Returns whether two lists of tensors have equal bytes."""
    return len(a) == len(b) and all(
        torch.equal(x.reshape(-1).view(torch.uint8), y.reshape(-1).view(torch.uint8))
        for x, y in zip(a, b, strict=True)
    )


# An operation gets two tensors of the graph, a row, a mask and a number.
Operation = Callable[[Tensor, Tensor, Tensor, Tensor, float], Tensor]


def turned(a: Tensor) -> Tensor:
    half = a.shape[-1] // 2
    return torch.cat([-a[..., half:], a[..., :half]], -1)


OPERATIONS: list[Operation] = [
    lambda a, b, row, mask, n: a + b,
    lambda a, b, row, mask, n: a - b,
    lambda a, b, row, mask, n: a * b,
    lambda a, b, row, mask, n: a * row,
    lambda a, b, row, mask, n: a + row,
    lambda a, b, row, mask, n: a * n,
    lambda a, b, row, mask, n: n - a,
    lambda a, b, row, mask, n: a / n,
    lambda a, b, row, mask, n: a / (a.abs() + 1),
    lambda a, b, row, mask, n: -a,
    lambda a, b, row, mask, n: F.relu(a),
    lambda a, b, row, mask, n: F.hardtanh(a, -1, 2),
    lambda a, b, row, mask, n: a * F.hardtanh(a + 3, 0, 6) / 6,
    lambda a, b, row, mask, n: F.hardswish(a),
    lambda a, b, row, mask, n: F.leaky_relu(a, 0.1),
    lambda a, b, row, mask, n: torch.where(mask, a, b),
    lambda a, b, row, mask, n: a.masked_fill(mask, 0.5),
    lambda a, b, row, mask, n: turned(a),
    lambda a, b, row, mask, n: torch.cat([a[..., ::2], a[..., 1::2]], -1),
    lambda a, b, row, mask, n: torch.minimum(a, b) + torch.maximum(a, b),
    lambda a, b, row, mask, n: a.clamp(-1, 1),
    lambda a, b, row, mask, n: a.square(),
    lambda a, b, row, mask, n: F.silu(a),
    lambda a, b, row, mask, n: F.gelu(a, approximate="tanh"),
    lambda a, b, row, mask, n: 0.5 * a * (1 + torch.tanh(0.8 * (a + 0.045 * a * a * a))),
    lambda a, b, row, mask, n: a * torch.sigmoid(a),
    lambda a, b, row, mask, n: a.to(torch.bfloat16).to(a.dtype),
    lambda a, b, row, mask, n: a.transpose(0, 1).contiguous().transpose(0, 1),
]


class RandomGraph:
    """A random element-wise graph, with views, broadcast operands, casts and masks in it."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, x: Tensor, row: Tensor, mask: Tensor) -> Tensor:
        draw = random.Random(self.seed)
        made = [x]
        for _ in range(draw.randint(2, 9)):
            a, b = draw.choice(made[-2:]), draw.choice(made)
            number = draw.choice([0.5, 3.0, -1.25, 0.1])
            made.append(draw.choice(OPERATIONS)(a, b, row, mask, number))
        return made[-1]


def test_random_regions_have_the_bits_of_eager(compiler: Compiler) -> None:
    graphs, accepted = 0, 0
    for part in range(24 if FULL else 2):
        dtype = (torch.float32, torch.bfloat16)[part % 2]
        several = [RandomGraph(100 * part + k) for k in range(10 if FULL else 5)]
        torch.manual_seed(part)
        weights = [nn.Parameter((torch.randn(24, 24) / 5).to(dtype)) for _ in several]
        x, row = torch.randn(37, 24).to(dtype), torch.randn(24).to(dtype)
        mask = torch.rand(37, 24) > 0.5

        def step(
            x: Tensor,
            row: Tensor,
            mask: Tensor,
            weights: list[nn.Parameter] = weights,
            several: list[RandomGraph] = several,
        ) -> Tensor:
            total = torch.zeros(())
            for weight, graph in zip(weights, several, strict=True):
                y = graph(x @ weight, row, mask)
                total = total + (y @ weight).float().square().mean()
            total.backward()  # type: ignore[no-untyped-call]
            return total

        parameters: list[Tensor] = list(weights)
        wanted = plain(step, parameters, x, row, mask)
        captured = reprise.capture(step, x, row, mask, alternatives=[NAME])
        accepted += all_fused(captured)
        assert same_bits(wanted, plain(captured, parameters, x, row, mask)), part
        graphs += len(several)
    assert accepted > graphs  # of a forward and a backward each


class Block(nn.Module):
    """A block of a Llama: rotary embedding with grouped keys, SwiGLU, residual sums."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        size = width // self.heads

        def rotated(z: Tensor) -> Tensor:
            return z * cos + torch.cat([-z[..., size // 2 :], z[..., : size // 2]], -1) * sin

        def repeated(z: Tensor) -> Tensor:
            z = z[:, :, None].expand(batch, self.heads // 2, 2, length, size)
            return z.reshape(batch, self.heads, length, size)

        y = self.n1(x)
        q, k, v = (
            one(y).view(batch, length, -1, size).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(
            rotated(q), repeated(rotated(k)), repeated(v), is_causal=True
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.n2(x)
        out: Tensor = self.down(F.silu(self.gate(y)) * self.up(y))
        return x + out


class Llama(nn.Module):
    """Some blocks."""

    def __init__(self, blocks: int, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.size = width // heads

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1])[:, None] / 100 ** (torch.arange(self.size) / self.size)
        cos, sin = angles.cos(), angles.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return x


def llama_step(net: Llama) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        loss: Tensor = net(x).square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return step


def test_blocks_of_a_llama_share_kernels_and_keep_their_bits_within_a_budget(
    compiler: Compiler,
) -> None:
    torch.manual_seed(0)
    net = Llama(blocks=4)
    step, x = llama_step(net), torch.randn(4, 32, 64)
    parameters: list[Tensor] = list(net.parameters())
    wanted = plain(step, parameters, x)
    everything = [one.name for one in reprise.alternatives() if one.exactness == "bitwise"]
    captured = reprise.capture(
        step, x, alternatives=[one for one in everything if one != "rebuild"]
    )
    for budget in ("100%", "50%"):
        captured.plan(budget=budget, time_limit=2)
        assert same_bits(wanted, plain(captured, parameters, x)), budget
        report = captured.report()
        assert report.measured_peak_bytes == report.predicted_peak_bytes
    fused = all_fused(captured)
    assert same_bits(wanted, plain(captured, parameters, x))
    # Rotary embedding, SwiGLU and residual sums, in each of four blocks, forward and backward.
    assert fused >= 4 * 6
    assert any("cat" in text for text in compiler.texts), "rotary embedding"
    assert any("silu_backward" in text for text in compiler.texts), "SwiGLU"


def test_casts_under_autocast_are_in_regions(compiler: Compiler) -> None:
    torch.manual_seed(0)
    net = Llama(blocks=2)

    def step(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss: Tensor = net(x).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    x = torch.randn(4, 32, 64)
    parameters: list[Tensor] = list(net.parameters())
    wanted = plain(step, parameters, x)
    captured = reprise.capture(step, x, alternatives=[NAME])
    assert all_fused(captured) >= 2 * 4
    assert same_bits(wanted, plain(captured, parameters, x))
    assert any("cast(" in text and "bfloat16" in text for text in compiler.texts)


def test_equal_regions_are_one_kernel(compiler: Compiler) -> None:
    counts = []
    for blocks in (3, 5):
        compiler.texts.clear()
        reprise.capture(llama_step(Llama(blocks)), torch.randn(4, 32, 64), alternatives=[NAME])
        counts.append(len(set(compiler.texts)))
    assert counts[0] == counts[1] > 0


@pytest.mark.usefixtures("compiler")
def test_a_kernel_asks_for_no_memory_but_what_its_loops_pass_on() -> None:
    captured = reprise.capture(llama_step(Llama(2)), torch.randn(4, 32, 64), alternatives=[NAME])
    fused = [op for op in captured.graph.ops if "fused(" in op.id]
    assert len(fused) > 8
    for op in fused:
        for variant in op.variants:
            assert variant.workspace_bytes == 0 or "cat" in op.id, op.id


def test_numbers_of_the_host_are_operands(compiler: Compiler) -> None:
    reprise.capture(
        scaled_step(nn.Parameter(torch.randn(32, 32))), torch.randn(64, 32), alternatives=[NAME]
    )
    assert compiler.texts
    assert all("0.625" not in text for text in compiler.texts)


def scaled_step(weight: Tensor) -> Callable[[Tensor], Tensor]:
    def step(x: Tensor) -> Tensor:
        y = x @ weight
        loss = ((y + 1) * y * 0.625) @ weight
        loss = loss.square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return step


def test_a_kernel_with_other_bits_is_refused() -> None:
    weight = nn.Parameter(torch.randn(32, 32))
    x = torch.randn(64, 32)
    step = scaled_step(weight)
    wanted = plain(step, [weight], x)
    reprise.capture  # noqa: B018  (sets the package's compiler)
    planted = Compiler(lambda text: text.replace("aten.add.Tensor", "aten.sub.Tensor"))
    _runtime.compile_regions_with(planted)
    try:
        captured = reprise.capture(step, x, alternatives=[NAME])
    finally:
        regions.offer()
    captured.plan(budget="100%", time_limit=1)
    found = captured.explain()
    assert any("has other bits" in text for text in found.refused), found.refused
    assert "not offered to the planner" in str(found)
    assert same_bits(wanted, plain(captured, [weight], x))


def test_without_a_compiler_nothing_is_fused() -> None:
    weight = nn.Parameter(torch.randn(32, 32))
    reprise.capture  # noqa: B018  (sets the package's compiler)
    _runtime.compile_regions_with(lambda texts: [("", "", [], "there is no g++")] * len(texts))
    try:
        captured = reprise.capture(scaled_step(weight), torch.randn(64, 32), alternatives=[NAME])
    finally:
        regions.offer()
    assert not captured.graph.choices
    assert any("there is no g++" in text for text in captured.explain().refused)


def test_what_is_compiled_is_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    text = "in a0 float32 (8) (1)\nv0 = aten.neg.default(a0)\nout v0 float32 (8) (1)\n"
    broken = text.replace("neg.default(a0)", "cumsum.default(a0, 0)")
    first = regions.compile_regions([text, broken, text])
    assert first[0] == first[2] and Path(first[0][0]).is_file() and not first[0][3]
    assert "something else than loops" in first[1][3]
    monkeypatch.setattr(regions, "source_of", None)
    assert regions.compile_regions([text, broken, text]) == first
