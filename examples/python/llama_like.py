"""A language model like Llama, of plain modules, for `python -m reprise fit`.

    python -m reprise fit examples/python/llama_like.py:seven_billion --memory 80GB,24GB,8GB \\
        --batch 1,2 --flops 400T --bandwidth 2TB
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class Norm(nn.Module):
    """A layer norm by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).to(x.dtype) * self.weight


def rotated(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Returns queries or keys with their positions."""
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_gates = Norm(width), Norm(width)
        self.queries, self.keys, self.values, self.out = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.gates, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        rows, positions, width = x.shape
        y = self.before_attention(x)
        q, k, v = (
            layer(y).view(rows, positions, self.heads, -1).transpose(1, 2)
            for layer in (self.queries, self.keys, self.values)
        )
        q, k = rotated(q, cosines, sines), rotated(k, cosines, sines)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, positions, width))
        y = self.before_gates(x)
        return x + self.down(F.silu(self.gates(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, hidden: int, words: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, heads, hidden) for _ in range(layers))
        self.norm = Norm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> Any:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        exponents = torch.arange(0, self.head_width, 2, device=tokens.device) / self.head_width
        angles = positions[:, None] * (10000.0**-exponents).repeat(2)
        x = self.words(tokens)
        cosines, sines = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cosines, sines)
        return self.head(self.norm(x))


def training(positions: int, rows: int, **sizes: int) -> dict[str, Any]:
    """Returns the arguments of `reprise.fit()`: step, sample and optimizer, all in bfloat16."""
    model = Llama(**sizes).to(torch.bfloat16)
    tokens = torch.randint(0, sizes["words"], (rows, positions))

    def step(tokens: torch.Tensor) -> float:
        scores = model(tokens)[:, :-1].flatten(0, 1).float()
        loss = F.cross_entropy(scores, tokens[:, 1:].flatten())
        loss.backward()
        return loss.item()

    return {"step": step, "sample": tokens, "optimizer": torch.optim.AdamW(model.parameters())}


def seven_billion() -> dict[str, Any]:
    """Returns a model of the size of Llama 2 7B, with 4096 positions a row."""
    return training(4096, 1, width=4096, layers=32, heads=32, hidden=11008, words=32000)


def tiny() -> dict[str, Any]:
    """Returns a model of the same form that trains anywhere."""
    return training(64, 4, width=64, layers=4, heads=4, hidden=128, words=500)
