"""A training loop like nanoGPT's, with one changed line: forward and backward run inside a budget.

The rest is as it was: accumulation over several batches, clipping by the global norm, warm-up and
cosine, weight decay for matrices alone, evaluation. `--budget none` leaves the changed line out.
The losses are then the same to the last bit.

Usage: python nanogpt_like.py [--budget 60%|none] [--steps 30] [--text FILE]
"""

from __future__ import annotations

import argparse
import math
import pathlib

import reprise
import torch
from torch import nn
from torch.nn import functional as F

ROOT = pathlib.Path(__file__).parents[2]
LAYERS, HEADS, WIDTH, LENGTH, DROPOUT = 4, 4, 64, 64, 0.1
BATCH, ACCUMULATED = 24, 2  # sequences in a batch, batches in an update
RATE, WARM_UP, DECAY, CLIP = 1e-3, 5, 0.1, 1.0


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        parts = self.attention(self.before_attention(x)).split(width, dim=2)
        q, k, v = (p.view(rows, length, HEADS, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=DROPOUT if self.training else 0.0, is_causal=True
        )
        y = self.projection(y.transpose(1, 2).contiguous().view(rows, length, width))
        x = x + F.dropout(y, DROPOUT, self.training)
        y = self.down(F.gelu(self.up(self.before_mlp(x))))
        return x + F.dropout(y, DROPOUT, self.training)


class Gpt(nn.Module):
    def __init__(self, words: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words, bias=False)
        self.apply(self._begin)
        self.head.weight = self.words.weight

    @staticmethod
    def _begin(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def rate_at(step: int, steps: int) -> float:
    if step < WARM_UP:
        return RATE * (step + 1) / WARM_UP
    share = (step - WARM_UP) / max(1, steps - WARM_UP)
    return RATE * (0.1 + 0.45 * (1 + math.cos(math.pi * share)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--budget", default="60%", help="a size, a share of the plain peak, or none"
    )
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--text", type=pathlib.Path, help="default: this project's documents")
    options = parser.parse_args()

    torch.manual_seed(1337)
    files = [options.text] if options.text else sorted(ROOT.glob("docs/*.md"))
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    letters = {letter: number for number, letter in enumerate(sorted(set(text)))}
    data = torch.tensor([letters[letter] for letter in text])
    parts = {"train": data[: len(data) * 9 // 10], "validation": data[len(data) * 9 // 10 :]}

    def batch(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = parts[part]
        starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,))
        windows = torch.stack([ids[s : s + LENGTH + 1] for s in starts])
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()

    model = Gpt(len(letters))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=(0.9, 0.95), fused=True)

    def forward_backward(tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = model(tokens, targets) / ACCUMULATED
        loss.backward()
        return loss.detach() * ACCUMULATED

    step = forward_backward
    if options.budget != "none":
        with torch.random.fork_rng():  # The sample is no batch of the run.
            sample = batch("train")
        step = reprise.train_step(step, *sample, budget=options.budget, time_limit=2)  # changed

    for number in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = rate_at(number, options.steps)
        for _ in range(ACCUMULATED):
            loss = step(*batch("train"))
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if number % 10 == 0 or number + 1 == options.steps:
            model.eval()
            with torch.no_grad():
                validation = model(*batch("validation"))
            model.train()
            print(f"step {number:3}  loss {loss.item():.9f}  validation {validation.item():.9f}")
    if options.budget != "none":
        print(step.report())


if __name__ == "__main__":
    main()
