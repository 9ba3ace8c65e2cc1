"""Measures the alternatives `tiles` and `forward-ad` on networks with written-out activations.

The activations are written as papers write them: GELU by tanh, Swish, hard-swish, Mish. The step is
forward, mean square and backward on one batch. Each network is captured with and without the two
alternatives, in one process. Peaks are above parameters, buffers and batch; times are the least of
several steps. Both are over those of plain eager training.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from functools import partial

import reprise
import torch
from stored_page import Page, arguments, steady_memory
from torch import nn
from torch.nn import functional as F

BUDGETS = (1.0, 0.5, 0.3)


def rows() -> dict[str, list[str]]:
    """Returns the alternatives of each row."""
    names = usual_names()
    return {
        "without both": names,
        "`tiles`": [*names, "tiles"],
        "`forward-ad` too": [*names, "tiles", "forward-ad"],
    }


def usual_names() -> list[str]:
    """Returns the alternatives that a capture uses where none is named."""
    return [
        one.name
        for one in reprise.alternatives()
        if one.in_graph
        and one.exactness == "bitwise"
        and one.name not in ("tiles", "perceptron-by-rows", "fused-regions")
    ]


class Written(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def gelu(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.sigmoid(x)


def hard_swish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


def mish(x: torch.Tensor) -> torch.Tensor:
    return x * torch.tanh(F.softplus(x))


class Perceptrons(nn.Module):
    """The perceptrons of a transformer with layer norms, without attention."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                Written(gelu),
                nn.Linear(4 * width, width),
            )
            for _ in range(layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def convolutions(function: Callable[[torch.Tensor], torch.Tensor], depth: int) -> nn.Module:
    layers: list[nn.Module] = []
    width = 3
    for _ in range(depth):
        layers += [nn.Conv2d(width, 32, 3, padding=1), nn.BatchNorm2d(32), Written(function)]
        width = 32
    return nn.Sequential(*layers)


NETWORKS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "perceptrons, GELU": lambda: (Perceptrons(8, 256), torch.randn(1024, 256)),
    "convolutions, Swish": lambda: (convolutions(swish, 8), torch.randn(8, 3, 64, 64)),
    "convolutions, hard-swish": lambda: (convolutions(hard_swish, 8), torch.randn(8, 3, 64, 64)),
    "convolutions, Mish": lambda: (convolutions(mish, 8), torch.randn(8, 3, 64, 64)),
}


def measure(
    model: nn.Module,
    run: Callable[[], object],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> tuple[float, int]:
    """Returns the least time of a step in seconds, and its peak above the begin in bytes."""
    least, peak = 0.0, 0
    for repeat in range(repeats + 1):
        model.zero_grad()
        gc.collect()
        before = reprise.live_bytes()
        reprise.reset_peak()
        begin = clock()
        run()
        seconds = clock() - begin
        if repeat > 0:
            least = min(least or seconds, seconds)
            peak = max(peak, reprise.peak_bytes() - before)
    return least, peak


def compare(name: str, repeats: int, say: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    model, x = NETWORKS[name]()

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        loss.backward()
        return loss.detach()

    def gradients() -> list[torch.Tensor]:
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    seconds, peak = measure(model, lambda: step(x), repeats)
    expected = gradients()
    say(f"\n## {name}\n")
    say(f"Plain training needs {peak / 1e6:.1f} MB and takes {seconds * 1e3:.0f} ms.\n")
    say("| alternatives | asked | peak | time | gradients |")
    say("|---|--:|--:|--:|---|")
    for row, names in rows().items():
        model.zero_grad()
        captured = reprise.capture(step, x, modules=[model], alternatives=names)
        for share in BUDGETS:
            model.zero_grad()
            gc.collect()
            try:
                captured.plan(budget=reprise.live_bytes() + int(share * peak), time_limit=3.0)
            except reprise.BudgetError:
                say(f"| {row} | {share:.1f} | - | - | no plan |")
                continue
            taken, most = measure(model, partial(captured, x), repeats)
            found = gradients()
            same = "equal"
            if not all(map(torch.equal, found, expected)):
                pairs = zip(found, expected, strict=True)
                far = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
                same = f"within {far:.0e}"
            say(f"| {row} | {share:.1f} | {most / peak:.3f} | {taken / seconds:.2f} | {same} |")


def main() -> None:
    options = arguments(__doc__, repeats=5).parse_args()
    steady_memory()
    say = Page(options.output, "Written-out activations")
    for name in NETWORKS:
        compare(name, options.repeats, say)


if __name__ == "__main__":
    main()
