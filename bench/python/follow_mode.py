"""Compares follow mode with plain training, graph mode and online mode, at half of the memory.

A step is forward, loss and backward of a network on one batch, and reads its loss as a number. The
budget is half of the memory above the parameters: parameters, and half of what plain training takes
beside them. The times are the least of several steps, of all modes in turn. Loss and gradients are
compared bit by bit. Graph mode does not read the number in the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import reprise
import torch
from networks import NETWORKS as COMMON
from networks import Network
from online_mode import PLAN_SECONDS, inside, learn, measure, results
from side_by_side import plain
from stored_page import Page, arguments, steady_memory
from torch import nn

SEARCH_SECONDS = 10.0


def llama(small: bool) -> Network:
    """Returns a Llama of Transformers, of the size of the table's GPT."""
    from transformers import LlamaConfig, LlamaForCausalLM

    layers, width, length, words = (2, 32, 16, 64) if small else (6, 256, 256, 8192)
    config = LlamaConfig(
        vocab_size=words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=8,
        max_position_embeddings=length,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    x = torch.randint(0, words, (4, length))

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.model(input_ids=ids).logits
            return found.transpose(1, 2)

    module = Logits()
    return Network(module, [lambda ids: (module(ids),)], x, torch.randint(0, words, (4, length)))


NETWORKS = {**COMMON, "llama": llama}


def reading(step: Callable[[], torch.Tensor], log: list[float]) -> Callable[[], torch.Tensor]:
    """Returns a step that keeps its loss in a list, as programs do."""

    def run() -> torch.Tensor:
        loss = step()
        log.append(loss.item())
        return loss

    return run


def compare(name: str, small: bool, repeats: int, say: Callable[[str], None]) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](small)
    log: list[float] = []
    bare = plain(network)
    step = reading(bare, log)
    expected = results(network, step)
    ((seconds, peak),) = measure(network, [step], repeats)
    network.module.zero_grad()
    parameters = sum(p.numel() * p.element_size() for p in network.module.parameters())
    budget = parameters + (peak - parameters) // 2
    modules = [network.module]
    dummy = torch.zeros(1)
    graph: Any = reprise.capture(lambda _: bare(), dummy, modules=modules)
    followed: Any = reprise.capture(lambda _: step(), dummy, follow=True, modules=modules)
    online = reprise.online(
        budget=budget, plan_after=1, time_limit=PLAN_SECONDS, planning_share=math.inf
    )
    graph.plan(budget=budget, time_limit=SEARCH_SECONDS)
    followed.plan(budget=budget, time_limit=SEARCH_SECONDS)
    runs = [lambda: graph(dummy), lambda: followed(dummy), inside(online, step)]
    for _ in range(3):
        network.module.zero_grad()
        followed(dummy)
    try:
        learn(network, online, runs[2])
    except reprise.BudgetError:
        runs.pop()
    same = [results(network, run) == expected for run in runs]
    (beside, _), *found = measure(network, [step, *runs], repeats)
    cells = [
        f"{taken / beside:.2f}, {'equal' if equal else '**differ**'}"
        for (taken, _), equal in zip(found, same, strict=True)
    ]
    cells += ["no room"] * (3 - len(runs))
    report = followed.report()
    row = [
        name, f"{peak / 1e6:.0f} MB, {seconds * 1e3:.0f} ms", f"{budget / peak:.2f}", *cells,
        f"{report.left} of {report.steps}",
    ]  # fmt: skip
    say(f"| {' | '.join(row)} |")


ABOUT = """\
The network `llama` needs the package transformers beside PyTorch.
The budget is half of the memory above the parameters, as a share of plain training's
peak. Times are over plain training's. The step keeps `loss.item()` in a list, but for
graph mode, which refuses that. The last column counts the calls without a plan."""


def main() -> None:
    options = arguments(__doc__, NETWORKS, repeats=5, small=True).parse_args()
    steady_memory()
    say = Page(options.output, "Follow mode", "[Follow mode](../follow.md) says more.", text=ABOUT)
    say("\n| network | plain | budget | graph mode | follow mode | online, planned | left |")
    say("|---|---|--:|--:|--:|--:|--:|")
    for name in options.networks:
        compare(name, options.small, options.repeats, say)


if __name__ == "__main__":
    main()
