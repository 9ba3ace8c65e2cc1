"""What users of PyTorch pick today beside Reprise, at equal measured peak.

Of a chain of blocks (a GPT, or a ResNet of bottlenecks): plain training, torch.utils.checkpoint per
block, checkpoint_sequential, torch.compile(backend="aot_eager") with activation_memory_budget; then
Reprise in chain and in graph mode with the measured peak of each of them as its budget. Peaks are
counted by Reprise's allocator, parameters and gradients included; times are the least of some
steps. Gradients are compared with plain training's, bit by bit.

Usage: OMP_NUM_THREADS=1 python side_by_side.py [gpt|resnet] [--repeats 5] [--small]
"""

from __future__ import annotations

import argparse
import gc
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import reprise
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

Step = Callable[[], torch.Tensor]


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Embed(nn.Module):
    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.positions


class Bottleneck(nn.Module):
    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        outside = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride != 1 or inside != outside:
            conv = nn.Conv2d(inside, outside, 1, stride, bias=False)
            self.skip = nn.Sequential(conv, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def gpt(small: bool) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    layers, width, length, batch = (4, 64, 64, 4) if small else (12, 256, 256, 4)
    vocabulary = 256 if small else 8192
    head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
    blocks = [GptBlock(width) for _ in range(layers)]
    x, y = (torch.randint(0, vocabulary, (batch, length)) for _ in range(2))
    model = nn.Sequential(Embed(vocabulary, width, length), *blocks, head, nn.Flatten(0, 1))
    return model, x, y.flatten()


def resnet(small: bool) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    depths, width, batch = ((1, 1, 1, 1), 16, 8) if small else ((3, 4, 6, 3), 64, 32)
    stem = nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    )
    blocks, inside = [], width
    for i, depth in enumerate(depths):
        for j in range(depth):
            blocks.append(Bottleneck(inside, width << i, 2 if i > 0 and j == 0 else 1))
            inside = 4 * (width << i)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(inside, 100))
    model = nn.Sequential(stem, *blocks, head)
    return model, torch.randn(batch, 3, 64, 64), torch.randint(0, 100, (batch,))


@dataclass
class Row:
    name: str
    asked: str
    peak: int = 0
    seconds: float = 0.0
    same: bool = False
    note: str = ""


class Bench:
    def __init__(self, make: Callable[[bool], Any], small: bool, repeats: int) -> None:
        self.make, self.small, self.repeats = make, small, repeats
        self.plain_grads: list[torch.Tensor] | None = None
        self.rows: list[Row] = []

    def run(self, name: str, asked: str, prepare: Callable[..., Step]) -> Row:
        """A fresh model, a warm-up step, measured steps. `prepare(model, x, y)` makes the step."""
        gc.collect()
        torch.manual_seed(0)
        model, x, y = self.make(self.small)
        row = Row(name, asked)
        try:
            step = prepare(model, x, y)
            self.measure(row, model, step)
        except (reprise.BudgetError, RuntimeError) as error:
            row.note = str(error).splitlines()[0][:90]
        self.rows.append(row)
        print_row(row, self.rows[0])
        return row

    def measure(self, row: Row, model: nn.Module, step: Step) -> None:
        times, peaks = [], []
        for _ in range(self.repeats + 1):
            model.zero_grad()
            gc.collect()
            reprise.reset_peak()
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
            peaks.append(reprise.peak_bytes())
        row.seconds, row.peak = min(times[1:]), max(peaks[1:])
        grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        if self.plain_grads is None:
            self.plain_grads = grads
        row.same = all(map(torch.equal, grads, self.plain_grads))


def train(forward: Callable[[torch.Tensor], torch.Tensor], x: Any, y: Any) -> Step:
    def step() -> torch.Tensor:
        loss = F.cross_entropy(forward(x), y)
        loss.backward()
        return loss.detach()

    return step


def per_block(model: nn.Sequential, x: Any, y: Any) -> Step:
    def forward(value: torch.Tensor) -> torch.Tensor:
        for block in model:
            value = checkpoint(block, value, use_reentrant=False)
        return value

    return train(forward, x, y)


def segments(count: int) -> Callable[..., Step]:
    def prepare(model: nn.Sequential, x: Any, y: Any) -> Step:
        return train(lambda v: checkpoint_sequential(model, count, v, use_reentrant=False), x, y)

    return prepare


def compiled(share: float) -> Callable[..., Step]:
    def prepare(model: nn.Sequential, x: Any, y: Any) -> Step:
        import torch._functorch.config as config

        config.activation_memory_budget = share
        torch._dynamo.reset()
        return train(torch.compile(model, backend="aot_eager"), x, y)

    return prepare


def chain_mode(budget: int) -> Callable[..., Step]:
    def prepare(model: nn.Sequential, x: Any, y: Any) -> Step:
        planned = reprise.remat(
            model, x, budget=budget, output_held=False, loss=lambda out: F.cross_entropy(out, y)
        )
        return train(planned, x, y)

    return prepare


def graph_mode(budget: int) -> Callable[..., Step]:
    def prepare(model: nn.Sequential, x: Any, y: Any) -> Step:
        def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return train(model, x, y)()

        captured = reprise.capture(step, x, y)
        captured.plan(budget=budget)
        return lambda: captured(x, y)

    return prepare


def print_row(row: Row, plain: Row) -> None:
    if row.note:
        print(f"| {row.name} | {row.asked} | {row.note} | | |", flush=True)
        return
    share, ratio = row.peak / plain.peak, row.seconds / plain.seconds
    same = "equal" if row.same else "differ"
    print(
        f"| {row.name} | {row.asked} | {row.peak:,} ({share:.3f}) | {ratio:.2f} | {same} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", choices=["gpt", "resnet"], default="gpt")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="a small model, to see that it works")
    options = parser.parse_args()
    reprise.install_cpu_allocator()
    print(
        f"{' '.join(sys.argv)}: torch {torch.__version__}, reprise {reprise.__version__}, ", end=""
    )
    print(f"{torch.get_num_threads()} threads, {platform.machine()}")
    print("| tool | asked | measured peak, bytes (of plain) | time (of plain) | gradients |")
    print("|---|---|---|---|---|")
    bench = Bench({"gpt": gpt, "resnet": resnet}[options.model], options.small, options.repeats)
    bench.run("plain", "-", lambda model, x, y: train(model, x, y))
    marks = [bench.run("torch.utils.checkpoint per block", "-", per_block)]
    for count in (2, 4):
        marks.append(bench.run("checkpoint_sequential", f"{count} segments", segments(count)))
    for share in (0.5, 0.2):
        name = "torch.compile, activation_memory_budget"
        marks.append(bench.run(name, f"{share}", compiled(share)))
    for peak in sorted({row.peak for row in marks if not row.note}, reverse=True):
        bench.run("Reprise, chain mode", f"{peak:,} B", chain_mode(peak))
        bench.run("Reprise, graph mode", f"{peak:,} B", graph_mode(peak))


if __name__ == "__main__":
    main()
