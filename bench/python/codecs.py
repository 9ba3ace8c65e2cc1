"""Measures the codecs of saved tensors: alone on activations, and in captured steps.

Alone: the error of what is decoded, and the time, on numbers with outliers and without. In captured
steps: peak, time and the error of gradients of a transformer within budgets, with each kind and
without. Peaks are above parameters, buffers and batch; times are of the processor, the least of
several steps. Both are over those of plain eager training. Then a small transformer is trained with
each kind.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import reprise
import torch
from reprise._planning.plan import ProblemId
from reprise._torch import _runtime
from stored_page import Page, arguments, steady_memory
from torch import nn
from torch.nn import functional as F
from written_out import measure, usual_names

CODECS = {
    "range, 8 bits": ("range", 8),
    "OliVe, 8 bits": ("olive", 8),
    "range, 4 bits": ("range", 4),
    "OliVe, 4 bits": ("olive", 4),
}
KINDS = {
    "none": [],
    "`compressed-8`": ["compressed-8"],
    "`compressed-4`": ["compressed-4"],
    "`olive-4`": ["olive-4"],
}
BUDGETS = (0.5, 0.35)
ROWS, WIDTH = 1024, 768


def activations() -> dict[str, torch.Tensor]:
    """Returns numbers as networks keep them, without outliers and with some."""
    normal = torch.randn(ROWS, WIDTH)
    few = torch.where(torch.rand(ROWS, WIDTH) < 1 / 1000, normal.sign() * 40, normal)
    channels = normal.clone()
    channels[:, [100, 401]] *= 30
    return {
        "normal": normal,
        "after GELU": F.gelu(normal),
        "after soft-max": F.softmax(2 * normal, 1),
        "1 of 1,000 is 40 deviations off": few,
        "2 channels of 768 are 30 times larger": channels,
    }


def best_of(run: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begin = time.process_time()
        run()
        times.append(time.process_time() - begin)
    return min(times)


def alone(say: Callable[[str], None], repeats: int) -> None:
    say("\n## Alone\n")
    say("Squared error of all elements over their variance, and of those within three deviations")
    say("over their own: the others are the outliers. Groups have 256 elements.\n")
    say("| numbers | " + " | ".join(CODECS) + " |")
    say("|---|" + "--:|" * len(CODECS))
    for name, x in activations().items():
        inside = (x - x.mean()).abs() <= 3 * x.std()
        cells = []
        for codec, bits in CODECS.values():
            encoded = _runtime.encode(
                x, bits=bits, group=256, stochastic=False, seed=0, codec=codec
            )
            error = (_runtime.decode(encoded) - x).square()
            every = float(error.mean() / x.var())
            most = float(error[inside].mean() / x[inside].var())
            cells.append(f"{every:.1e}, {most:.1e}")
        say(f"| {name} | " + " | ".join(cells) + " |")
    say("\n| codec | bits an element | encode, ns an element | decode |")
    say("|---|--:|--:|--:|")
    x = torch.randn(1 << 18)
    for name, (codec, bits) in CODECS.items():

        def encode(codec: str = codec, bits: int = bits) -> _runtime.Encoded:
            return _runtime.encode(x, bits=bits, group=256, stochastic=False, seed=0, codec=codec)

        encoded = encode()
        there = best_of(encode, 10 * repeats) / x.numel() * 1e9
        back = best_of(lambda e=encoded: _runtime.decode(e), 10 * repeats) / x.numel() * 1e9
        say(f"| {name} | {8 * encoded.bytes / x.numel():.2f} | {there:.1f} | {back:.1f} |")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.mixed(self.before(x)).view(n, length, 3, self.heads, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(n, length, width))
        return x + self.narrow(F.gelu(self.wide(self.behind(x))))


class Small(nn.Module):
    """A transformer that learns to say the token of some places ago."""

    def __init__(self, layers: int, width: int, length: int, tokens: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.tokens(x) + self.places.weight[: x.shape[1]]
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y))


BACK = 3


def batch(count: int, length: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randint(tokens, (count, length))
    return x, torch.roll(x, BACK, 1)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    logits = model(x)[:, BACK:]
    return F.cross_entropy(logits.flatten(0, 1), y[:, BACK:].flatten())


def captured(
    model: nn.Module, kinds: list[str], x: torch.Tensor, y: torch.Tensor
) -> reprise.CapturedStep:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = loss_of(model, x, y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    return reprise.capture(step, x, y, alternatives=[*usual_names(), *kinds])


def flat_gradients(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def in_steps(say: Callable[[str], None], repeats: int) -> None:
    say("\n## In captured steps\n")
    torch.manual_seed(0)
    model = Small(layers=6, width=256, length=128, tokens=64)
    x, y = batch(8, 128, 64)

    def plain() -> None:
        loss_of(model, x, y).backward()  # type: ignore[no-untyped-call]

    seconds, peak = measure(model, plain, repeats, time.process_time)
    expected = flat_gradients(model)
    gradients = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    fixed = reprise.live_bytes() - gradients
    say("A transformer of 6 blocks, width 256, 8 sequences of 128. Plain training needs")
    say(f"{peak / 1e6:.1f} MB and takes {seconds * 1e3:.0f} ms. Planned times are over those of")
    say("plain training on the same graph, and bounds below them. The error is of all gradients")
    say("of parameters, relative. Values are those that the plan encodes, and the codec's bound is")
    say("that of the last step, over a value's largest element.\n")
    say("| kinds | asked | peak | time | planned | bound | values | off by at most | error |")
    say("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, kinds in KINDS.items():
        model.zero_grad()
        step = captured(model, kinds, x, y)
        for share in BUDGETS:
            model.zero_grad()
            try:
                result = step.plan(budget=int(fixed + share * peak))
            except reprise.BudgetError:
                say(f"| {name} | {share} | no plan | | | | | | |")
                continue
            time_of, peak_of = measure(model, lambda s=step: s(x, y), repeats, time.process_time)
            values = step.approximate_values()
            off = max((v.bound / v.largest for v in values), default=0.0)
            error = float((flat_gradients(model) - expected).norm() / expected.norm())
            said = "equal" if error == 0 else f"{error:.0e}"
            planned = result.plan.time_ns / result.baseline.time_ns
            bound = result.lower_bound_ns / result.baseline.time_ns
            say(
                f"| {name} | {share} | {peak_of / peak:.3f} | {time_of / seconds:.2f} "
                f"| {planned:.3f} | {bound:.3f} | {len(values)} | {off:.1%} | {said} |"
            )
        del step


def forced(graph: reprise.Graph, kinds: list[str]) -> reprise.Plan:
    """Returns the plan that uses kinds wherever it can, as if they took no time."""
    free = {
        op
        for choice in graph.choices
        for one in choice.realizations[1:]
        if one.name in kinds
        for op in one.ops
    }

    def priced(op: reprise.Op) -> reprise.Op:
        if op.id not in free:
            return op
        return replace(op, variants=tuple(replace(one, ns=0) for one in op.variants))

    cheap = replace(graph, ops=tuple(priced(op) for op in graph.ops))
    found = reprise.plan(cheap, planner="graph", allow="approximate", time_limit=1).plan
    assert found is not None
    times = {(op.id, one.name): one.ns for op in graph.ops for one in op.variants}
    return replace(
        found,
        problem=ProblemId("reprise.graph", graph.name),
        time_ns=sum(times[one.id, one.variant] for one in found.actions if one.kind == "run"),
        lower_bound_ns=0,
        termination="feasible",
        baseline=reprise.plan(graph, planner="keep_all").baseline,
    )


def training(say: Callable[[str], None], steps: int) -> None:
    say("\n## A training\n")
    say(f"{steps} steps of Adam of a transformer of 2 blocks, width 64, that says the token of")
    say(f"{BACK} places ago. Each kind keeps all values that it can.\n")
    say("| kind | values | kept of their bytes | loss at the end | right answers |")
    say("|---|--:|--:|--:|--:|")
    for name, kinds in KINDS.items():
        torch.manual_seed(0)
        model = Small(layers=2, width=64, length=32, tokens=16)
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
        step = captured(model, kinds, *batch(32, 32, 16))
        step.use(forced(step.graph, kinds))
        values = step.approximate_values()
        plain = sum(v.plain_bytes for v in values)
        kept = f"{sum(v.kept_bytes for v in values) / plain:.0%}" if plain else "-"
        loss = torch.zeros(())
        for _ in range(steps):
            optimizer.zero_grad()
            loss = step(*batch(32, 32, 16))
            optimizer.step()
        x, y = batch(64, 32, 16)
        right = (model(x).argmax(2) == y)[:, BACK:].float().mean()
        say(f"| {name} | {len(values)} | {kept} | {float(loss):.4f} | {float(right):.1%} |")


def main() -> None:
    parser = arguments(__doc__, repeats=7)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("tables", nargs="*", help="alone, steps, training; all by default")
    options = parser.parse_args()
    steady_memory()
    say = Page(options.output, "Codecs of saved tensors")
    say("- Numbers are float32.")
    say("- Times are those of the processor: other programs ran beside this one.")
    wanted = options.tables or ["alone", "steps", "training"]
    torch.manual_seed(0)
    if "alone" in wanted:
        alone(say, options.repeats)
    if "steps" in wanted:
        in_steps(say, options.repeats)
    if "training" in wanted:
        training(say, options.steps)


if __name__ == "__main__":
    main()
