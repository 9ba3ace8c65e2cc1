"""A GPT learns the bytes of a text inside a share of its memory: the whole step captured, planned
operation by operation, replayed.

Usage: python gpt_on_text.py [--text FILE] [--budget 60%] [--steps 50] [--width 96] [--layers 3]
"""

import argparse
import pathlib
import time

import reprise
import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).parents[2]


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.proj(seen.transpose(1, 2).reshape(batch, length, width)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.blocks(self.tokens(ids) + self.positions))
        return F.linear(x, self.tokens.weight)


def batches(text: bytes, batch: int, length: int, steps: int):
    """Random windows of the text: bytes, and the bytes that follow them."""
    data = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    for _ in range(steps):
        starts = torch.randint(0, len(data) - length - 1, (batch,))
        windows = torch.stack([data[s : s + length + 1] for s in starts])
        yield windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=pathlib.Path, help="default: this project's documents")
    parser.add_argument("--budget", default="60%")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    options = parser.parse_args()
    files = [options.text] if options.text else sorted(ROOT.glob("docs/**/*.md"))
    text = b"".join(file.read_bytes() for file in files)

    torch.manual_seed(0)
    model = Gpt(options.width, options.layers, options.length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        return loss

    source = batches(text, options.batch, options.length, options.steps + 1)
    captured = reprise.capture(step, *next(source))
    print(captured.plan(budget=options.budget))
    begin = time.perf_counter()
    for i, (ids, targets) in enumerate(source):
        optimizer.zero_grad()
        loss = captured(ids, targets)
        optimizer.step()
        if i % 10 == 0 or i + 1 == options.steps:
            print(f"step {i:4}  loss {loss.item():.4f}  {time.perf_counter() - begin:.1f} s")
    print(captured.report())


if __name__ == "__main__":
    main()
