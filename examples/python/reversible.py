"""A RevNet and a reversible transformer: many blocks in the memory of a few, with the same bits.

The script trains each network twice for a few steps, with reversal and without, and prints the
peak memory, the time, and whether all parameters have the same bits afterwards.
"""

import argparse
import itertools
import time

import reprise
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Self-attention of a pre-norm transformer block."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inside = nn.Linear(width, 3 * width)
        self.outside = nn.Linear(width, width)
        self.heads = heads

    def forward(self, x):
        """Attends over the second dimension."""
        batch, length, width = x.shape
        split = self.inside(self.norm(x)).view(batch, length, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outside(y.transpose(1, 2).reshape(batch, length, width))


def mlp(width):
    return nn.Sequential(
        nn.LayerNorm(width),
        nn.Linear(width, 4 * width),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(4 * width, width),
    )


def residual(channels):
    """The residual function of a RevNet: two norms, two convolutions."""
    return nn.Sequential(
        *itertools.chain.from_iterable(
            (
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            )
            for _ in range(2)
        )
    )


class RevNet(nn.Module):
    """Stages of reversible blocks. The convolutions between them are not reversible."""

    def __init__(self, depth, width=16):
        super().__init__()
        self.stem = nn.Conv2d(3, 2 * width, 3, padding=1, bias=False)
        self.first = self.stage(depth // 2, width)
        self.down = nn.Conv2d(2 * width, 4 * width, 3, stride=2, padding=1, bias=False)
        self.second = self.stage(depth - depth // 2, 2 * width)
        self.norm = nn.BatchNorm2d(4 * width)
        self.head = nn.Linear(4 * width, 10)

    def stage(self, depth, width):
        blocks = (reprise.nn.Reversible(residual(width), residual(width)) for _ in range(depth))
        return reprise.nn.ReversibleSequence(*blocks)  # halves dimension 1, the channels

    def forward(self, x):
        """Returns class scores."""
        x = self.second(self.down(self.first(self.stem(x))))
        return self.head(self.norm(x).relu().mean((2, 3)))


class Transformer(nn.Module):
    """The block of Reformer: y1 = x1 + attention(x2), y2 = x2 + mlp(y1)."""

    def __init__(self, depth, width=64, vocabulary=32):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        blocks = (reprise.nn.Reversible(Attention(width), mlp(width)) for _ in range(depth))
        self.blocks = reprise.nn.ReversibleSequence(*blocks)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, tokens):
        """Returns the scores of the next tokens."""
        x = self.embed(tokens)
        return self.head(torch.cat(self.blocks(x, x), -1)).transpose(1, 2)


def batches(name, batch):
    if name == "revnet":
        y = torch.randint(0, 10, (batch,))
        x = torch.randn(batch, 3, 32, 32) + y.view(-1, 1, 1, 1) / 4
        return x, y
    tokens = (
        torch.randint(0, 32, (batch, 1)) + torch.arange(65) * torch.randint(1, 4, (batch, 1))
    ) % 32
    return tokens[:, :-1], tokens[:, 1:]


def train(name, depth, batch, steps, reverse):
    """Returns the losses, the parameters, the peak of activations, and the seconds of a step."""
    torch.manual_seed(0)
    model = RevNet(depth) if name == "revnet" else Transformer(depth)
    for module in model.modules():
        if isinstance(module, reprise.nn.ReversibleSequence):
            module.reverse = reverse
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, seconds, peak = [], [], 0
    for step in range(steps):
        x, y = batches(name, batch)
        # From the second step on, only activations come and go.
        optimizer.zero_grad(set_to_none=step == 0)
        before, begin = reprise.live_bytes(), time.perf_counter()
        reprise.reset_peak()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        seconds.append(time.perf_counter() - begin)
        peak = reprise.peak_bytes() - before
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, [p.detach() for p in model.parameters()], peak, min(seconds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=["revnet", "transformer"])
    parser.add_argument("--depth", type=int, default=64, help="blocks")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    reprise.install_cpu_allocator()
    for name in options.models:
        print(f"{name}, batch {options.batch}")
        found = {}
        for depth, reverse in [(2, False), (options.depth, False), (options.depth, True)]:
            run = train(name, depth, options.batch, options.steps, reverse)
            found[depth, reverse] = run
            how = "reversed" if reverse else "plain"
            print(
                f"  {depth:3} blocks, {how:8}: {run[2] / 2**20:7.1f} MiB, {run[3]:.2f} s a step, "
                f"loss {run[0][0]:.4f} -> {run[0][-1]:.4f}"
            )
        plain, reverse = found[options.depth, False], found[options.depth, True]
        same = all(map(torch.equal, plain[1], reverse[1])) and plain[0] == reverse[0]
        print(f"  parameters after {options.steps} steps: {'same bits' if same else 'different'}")
        if not same:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
