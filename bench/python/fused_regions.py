"""Measures the alternative `fused-regions` beside plain training and torch.compile with inductor.

The networks are a Llama as Transformers writes it (rotary embedding with grouped keys, RMS norms,
SwiGLU) and a GPT. All ways train the same batch from the same seed, in one process and in turns, so
that a busy machine is busy for all of them. A time is that of the processor, the least of several
steps on one thread, over plain training's. Peaks are above parameters, buffers and batch. The
budgets are plain training's peak and half of it.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import reprise
import torch
from networks import Network, gpt, next_tokens
from stored_page import Page, arguments, steady_memory
from torch import nn
from torch.nn import functional as F
from written_out import usual_names

Step = Callable[[], Any]
SHARES = (1.0, 0.5)
NAME = "fused-regions"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(width, width // 2, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 3 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        size = width // self.heads

        def turned(z: torch.Tensor) -> torch.Tensor:
            return z * cos + torch.cat((-z[..., size // 2 :], z[..., : size // 2]), -1) * sin

        def repeated(z: torch.Tensor) -> torch.Tensor:
            z = z[:, :, None].expand(batch, self.heads // 2, 2, length, size)
            return z.reshape(batch, self.heads, length, size)

        y = self.n1(x)
        q, k, v = (
            one(y).view(batch, length, -1, size).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        mixed = F.scaled_dot_product_attention(
            turned(q), repeated(turned(k)), repeated(v), is_causal=True
        )
        x = x + self.o(mixed.transpose(1, 2).reshape(batch, length, width))
        y = self.n2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, vocabulary: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.size = width // heads

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        speeds = 10000 ** (-torch.arange(0, self.size, 2).float() / self.size)
        angles = torch.arange(ids.shape[1]).float()[:, None] * torch.cat((speeds, speeds))
        cos, sin = angles.cos()[None, None], angles.sin()[None, None]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.head(self.norm(x))


def llama(small: bool) -> Network:
    vocabulary, width, layers, length = (256, 64, 2, 64) if small else (2048, 256, 8, 256)
    model = Llama(vocabulary, width, width // 64 if not small else 4, layers)
    x, y = next_tokens(vocabulary, (4, length), seed=1)
    return Network(module=model, stages=[model], x=x, y=y)


NETWORKS = {"llama": llama, "gpt": gpt}


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.view(-1))


class Way:
    """One way to train, with its least time, its peak in bytes above the begin, and its bits."""

    def __init__(self, name: str, network: Network, step: Step) -> None:
        self.name, self.network, self.step = name, network, step
        self.seconds, self.peak, self.far = 0.0, 0, 0.0

    def run(self, expected: list[torch.Tensor] | None = None) -> None:
        gc.collect()
        before = reprise.live_bytes()
        reprise.reset_peak()
        begin = time.process_time()
        self.step()
        seconds = time.process_time() - begin
        self.seconds = min(self.seconds or seconds, seconds)
        self.peak = max(self.peak, reprise.peak_bytes() - before)
        for one, other in zip(self.gradients(), expected or [], strict=expected is not None):
            if not torch.equal(one, other):
                self.far = max(self.far, float((one - other).abs().max() / other.abs().max()))
        # Budgets count all memory of the process, so no way keeps its gradients.
        self.network.module.zero_grad()

    def gradients(self) -> list[torch.Tensor]:
        parameters = self.network.module.parameters()
        return [one.grad for one in parameters if one.grad is not None]


def trained(network: Network, loss: Callable[..., torch.Tensor]) -> Step:
    def step() -> None:
        loss(network.module, network.x, network.y).backward()

    return step


def captured(network: Network, names: list[str]) -> reprise.CapturedStep:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(network.module, x, y)
        loss.backward()
        return loss.detach()

    return reprise.capture(step, network.x, network.y, modules=[network.module], alternatives=names)


def compare(name: str, small: bool, repeats: int, say: Callable[[str], None]) -> None:
    def fresh() -> Network:
        torch.manual_seed(0)
        return NETWORKS[name](small)

    network = fresh()
    ways = [Way("plain training", network, trained(network, loss_of))]
    ways[0].step()
    expected = [one.clone() for one in ways[0].gradients()]
    network.module.zero_grad()
    network = fresh()
    compiled = torch.compile(loss_of, dynamic=False)
    ways.append(Way("`torch.compile`, inductor", network, trained(network, compiled)))
    steps = []
    for names, suffix in ((usual_names(), ""), ([*usual_names(), NAME], f", `{NAME}`")):
        for share in SHARES:
            network = fresh()
            one = captured(network, names)
            steps.append((one, share))
            run = partial(one, network.x, network.y)
            ways.append(Way(f"Reprise, asked for {share:.1f}{suffix}", network, run))
    for way in ways[:2]:
        way.run()
    for one, share in steps:
        one.plan(budget=reprise.live_bytes() + int(share * ways[0].peak), time_limit=5.0)
    for way in ways:
        way.run(expected)
        way.seconds = 0
    for _ in range(repeats):
        for way in ways:
            way.run()
    plain = ways[0]
    say(f"\n## {name}\n")
    say(f"Plain training needs {plain.peak / 1e6:.1f} MB and takes {plain.seconds * 1e3:.0f} ms.\n")
    say("| way | peak | time | gradients |")
    say("|---|--:|--:|---|")
    for way in ways:
        same = f"within {way.far:.0e}" if way.far else "equal"
        peak, seconds = way.peak / plain.peak, way.seconds / plain.seconds
        say(f"| {way.name} | {peak:.3f} | {seconds:.2f} | {same} |")


def main() -> None:
    options = arguments(__doc__, NETWORKS, repeats=7, small=True).parse_args()
    steady_memory()
    link = "[Fused regions](../alternatives.md#fused-regions) says how to read it."
    say = Page(options.output, "Fused regions", link)
    for name in options.networks:
        compare(name, options.small, options.repeats, say)


if __name__ == "__main__":
    main()
