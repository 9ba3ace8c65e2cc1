"""Trains on batches of many lengths inside a budget, and compares with plain training.

A step is forward, loss and backward of a GPT on one batch. The batches have 44 lengths in random
order. The budget is 60 % of plain training's peak on the longest batch. Both ways run in turns,
call by call, and losses and gradients are compared bit by bit.
"""

from __future__ import annotations

import copy
import random
import time
from collections.abc import Callable
from typing import Any

import reprise
import torch
from networks import GptBlock
from stored_page import Page, arguments, steady_memory
from torch import nn

LENGTHS, SHARE = 44, 60


class Embed(nn.Module):
    def __init__(self, words: int, width: int, longest: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Parameter(torch.randn(longest, width) * 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.tokens(ids) + self.positions[: ids.shape[1]]
        return found


def model(small: bool, longest: int) -> nn.Module:
    layers, width, words = (2, 32, 64) if small else (6, 256, 1024)
    torch.manual_seed(0)
    return nn.Sequential(
        Embed(words, width, longest),
        *(GptBlock(width) for _ in range(layers)),
        nn.LayerNorm(width),
        nn.Linear(width, words, bias=False),
    )


def step_of(net: nn.Module, losses: list[float]) -> Callable[..., Any]:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss: Any = nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        loss.backward()
        losses.append(loss.item())
        return loss.detach()

    return step


def peak_of(net: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> int:
    """Returns the peak of the second of two plain steps, beside one copy of the model."""
    for _ in range(2):
        net.zero_grad()
        reprise.reset_peak()
        step_of(net, [])(*batch)
    net.zero_grad()
    return reprise.peak_bytes()


def main() -> None:
    parser = arguments(__doc__, small=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--calls", action="store_true", help="print a line for each call")
    options = parser.parse_args()
    torch.set_num_threads(1)
    steady_memory()
    longest, batch = (64, 2) if options.small else (448, 4)
    draw = random.Random(3)
    lengths = sorted(draw.sample(range(longest // 8, longest), LENGTHS - 1)) + [longest]
    order = lengths + draw.choices(lengths, k=max(0, options.steps - LENGTHS))
    draw.shuffle(order)
    order = order[: options.steps]
    words = 64 if options.small else 1024

    def batch_of(call: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        seeded = torch.Generator().manual_seed(call)
        x, y = (torch.randint(0, words, (batch, length), generator=seeded) for _ in range(2))
        return x, y

    twin = model(options.small, longest)
    peak = peak_of(twin, batch_of(0, longest))
    budget = peak * SHARE // 100
    net = copy.deepcopy(twin)
    held = sum(p.nbytes for p in net.parameters())  # The other model lies beside this one.
    losses: tuple[list[float], list[float]] = ([], [])
    plain = step_of(twin, losses[0])
    followed: Any = reprise.capture(
        step_of(net, losses[1]), *batch_of(0, order[0]), modules=[net], follow=True
    )
    followed.plan(budget=budget + held)
    times: list[tuple[float, float]] = []
    equal, over = True, 0
    for call, length in enumerate(order):
        inputs = batch_of(call, length)
        begin = time.perf_counter()
        plain(*inputs)
        middle = time.perf_counter()
        gradients = [p.grad for p in twin.parameters()]
        images = [g.numpy().tobytes() for g in gradients if g is not None]
        twin.zero_grad()
        del gradients
        between = time.perf_counter()
        followed(*inputs)
        times.append((middle - begin, time.perf_counter() - between))
        gradients = [p.grad for p in net.parameters()]
        equal &= images == [g.numpy().tobytes() for g in gradients if g is not None]
        del gradients
        net.zero_grad()
        report = followed.report()
        over = max(over, report.measured_peak_bytes - budget - held)
        if options.calls:
            a, b = times[-1]
            print(call, length, f"{a * 1e3:.0f} ms, {b / a:.2f}", report.left,
                  report.last_difference[:60], flush=True)  # fmt: skip
    equal &= losses[0] == losses[1]

    def ratio(part: slice) -> str:
        return f"{sum(b for _, b in times[part]) / sum(a for a, _ in times[part]):.2f}"

    half = len(times) // 2
    cells = [
        f"{peak / 1e6:.0f} MB, {sum(a for a, _ in times) / len(times) * 1e3:.0f} ms on average",
        "equal" if equal else "**differ**",
        "held" if over <= 0 else f"**{over / 1e6:.1f} MB over**",
        *(ratio(part) for part in (slice(None), slice(half), slice(half, None))),
        str(followed.report().left),
    ]
    about = f"""\
A GPT trains on {len(order)} batches of {LENGTHS} lengths, up to {longest}, in random
order. The budget is {SHARE} % of plain training's peak on the longest batch. Times are
over plain training's, call by call in turns. They have all that follow mode does between
two calls: recordings, measurements, searches for plans."""
    link = "[Follow mode](../follow.md) says more."
    say = Page(options.output, "Batches of many lengths", link, text=about)
    say(
        "\n| plain | bits | the budget is | all calls | first half | second half | without a plan |"
    )
    say("|---|---|---|--:|--:|--:|--:|")
    say(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
