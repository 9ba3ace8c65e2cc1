"""Measures layers of reprise.nn in small networks: peak memory, time, and the error of gradients.

Each row trains the same network on the same batch, forward and backward. The peak is that of a step
above what lives before it, gradients of parameters left out. Times are the least of several steps,
which take turns, over those of the first row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import reprise
import torch
from stored_page import Page, arguments, steady_memory
from torch import nn
from torch.nn import functional as F

# A step computes gradients and returns the loss.
Step = Callable[[], Any]
# A row has the model, a step, and whether its gradients are compared with the first row's.
Row = tuple[nn.Module, Step]


def conv_net(
    norm: Callable[[int], list[nn.Module]], blocks: int = 8, width: int = 32
) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False)]
    for _ in range(blocks):
        layers += [*norm(width), nn.Conv2d(width, width, 3, padding=1, bias=False)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def classify(net: nn.Module, x: Any, y: Any) -> Step:
    def step() -> Any:
        loss = F.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return step


def batch_norms() -> dict[str, Row]:
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def plain(inplace: bool) -> nn.Sequential:
        return conv_net(lambda w: [nn.BatchNorm2d(w), nn.LeakyReLU(0.01, inplace=inplace)])

    rows: dict[str, Row] = {}
    for name, net in {
        "batch norm, leaky ReLU": plain(False),
        "batch norm, leaky ReLU in place": plain(True),
        "`InPlaceABN`": conv_net(lambda w: [reprise.nn.InPlaceABN(w)]),
    }.items():
        rows[name] = (net, classify(net, x, y))
    for budget in ("70%", "60%"):
        net = plain(True)
        captured = reprise.capture(lambda x, y, net=net: classify(net, x, y)(), x, y, modules=[net])
        captured.plan(budget=budget)
        rows[f"the same, captured, budget {budget}"] = (net, lambda c=captured: c(x, y))
    return rows


def convolutions() -> dict[str, Row]:
    x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

    def net(probes: int | None, few: bool) -> nn.Sequential:
        made = conv_net(lambda w: [reprise.nn.FewBit("silu", bits=3) if few else nn.SiLU()])
        if probes is not None:
            reprise.nn.convert(made, allow="approximate", only=("xconv",), probes=probes)
        return made

    rows: dict[str, Row] = {}
    for name, made in {
        "convolutions, SiLU": net(None, False),
        "`XConv2d`, 8 probes, SiLU": net(8, False),
        "`XConv2d`, 8 probes, `FewBit`": net(8, True),
        "`XConv2d`, 64 probes, `FewBit`": net(64, True),
    }.items():
        rows[name] = (made, classify(made, x, y))
    return rows


def saved_tensors() -> dict[str, Row]:
    x, y = torch.randn(64, 64, 128), torch.randint(0, 10, (64,))

    def make() -> nn.Module:
        torch.manual_seed(0)
        block = nn.TransformerEncoderLayer(
            128, 4, 512, 0.0, "gelu", batch_first=True, norm_first=True
        )
        return nn.Sequential(nn.TransformerEncoder(block, 4, enable_nested_tensor=False), Last(128))

    rows: dict[str, Row] = {}
    for bits in (None, 8, 4, 2):
        net = make()
        rows["plain" if bits is None else f"`compressed`, {bits} bits"] = (
            net,
            encoded(net, x, y, bits),
        )
    return rows


class Last(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        return self.head(x.mean(1))


def encoded(net: nn.Module, x: Any, y: Any, bits: int | None) -> Step:
    if bits is None:
        return classify(net, x, y)

    def step() -> Any:
        with reprise.nn.compressed(net, x, bits=bits, stochastic=bits < 8):
            loss = F.cross_entropy(net(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    return step


def machines() -> dict[str, Row]:
    x, y = torch.randn(4096, 64), torch.randint(0, 10, (4096,))
    sizes = [64] * 16 + [10]

    class Concatenated(nn.Module):
        def __init__(self, machine: reprise.nn.FiniteDepth) -> None:
            super().__init__()
            self.machine = machine

        def forward(self, x: Any) -> Any:
            z = x
            for w, b in zip(self.machine.weights, self.machine.biases, strict=True):
                z = torch.cat([z, F.linear(z, w, b).relu()], -1)
            return z[:, -10:]

    def machine() -> reprise.nn.FiniteDepth:
        torch.manual_seed(0)
        return reprise.nn.FiniteDepth(sizes)

    plain, other = Concatenated(machine()), machine()
    return {
        "concatenations": (plain, classify(plain, x, y)),
        "`FiniteDepth`": (other, classify(other, x, y)),
    }


TABLES: dict[str, tuple[str, Callable[[], dict[str, Row]]]] = {
    "batch-norm": (
        "Batch norms: 8 convolutions of 32 channels at 32 x 32, batch 16",
        batch_norms,
    ),
    "xconv": ("Convolutions without norms: the same network", convolutions),
    "compressed": (
        "Saved tensors: a transformer of 4 blocks, width 128, 64 sequences of 64",
        saved_tensors,
    ),
    "machine": ("Machines of finite depth: 16 blocks of 64, batch 4,096", machines),
}


def measure(rows: dict[str, Row], repeats: int) -> list[tuple[str, int, float, float]]:
    """Returns for each row its name, peak, time, and the error of its gradients."""
    times: dict[str, float] = {}
    peaks: dict[str, int] = {}
    gradients: dict[str, Any] = {}
    for repeat in range(repeats + 1):
        for name, (net, step) in rows.items():
            for p in net.parameters():
                p.grad = torch.zeros_like(p)
            before, begin = reprise.live_bytes(), time.perf_counter()
            reprise.reset_peak()
            step()
            seconds = time.perf_counter() - begin
            if repeat > 0:
                times[name] = min(times.get(name, seconds), seconds)
            peaks[name] = reprise.peak_bytes() - before
            gradients[name] = torch.cat(
                [p.grad.flatten() for p in net.parameters() if p.grad is not None]
            )
            for p in net.parameters():
                p.grad = None
    first = gradients[next(iter(rows))]
    return [
        (name, peaks[name], times[name], float((gradients[name] - first).norm() / first.norm()))
        for name in rows
    ]


def main() -> None:
    parser = arguments(__doc__, TABLES, "table", repeats=9)
    options = parser.parse_args()
    steady_memory()
    say = Page(options.output, "Layers in networks")
    say("- Numbers are float32.")
    say(
        "- Peak: of a step, above what lives before it, without gradients of parameters. Time: of a"
    )
    say("  step, over the first row. Error: of the gradients of parameters, relative to the first")
    say("  row's.")
    for key in options.tables:
        title, rows = TABLES[key]
        torch.manual_seed(0)
        found = measure(rows(), options.repeats)
        say(f"\n## {title}\n")
        say("| network | peak, MiB | time | error |")
        say("|---|--:|--:|--:|")
        for name, peak, seconds, error in found:
            said = "equal" if error == 0 else f"{error:.0e}"
            say(f"| {name} | {peak / 2**20:.1f} | {seconds / found[0][2]:.2f} | {said} |")


if __name__ == "__main__":
    main()
