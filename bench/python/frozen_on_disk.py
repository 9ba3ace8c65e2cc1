"""Fine-tunes a frozen GPT with adapters while values, and then its weights, may lie on a disk.

The network is that of optimizer_on_disk.py. All of its weights are frozen, and each linear layer
of its blocks has a trained adapter of low rank beside it, as in LoRA (E. Hu et al., 2022). The ways
are measured as there: each trains a copy of the same network on the same batches, at the smallest
budget for which it found a plan, and its parameters and moments are compared with plain training's,
bit by bit. The last way has a larger budget, in which a part of the weights stays in memory.
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import optimizer_on_disk as base
import reprise
import torch
from optimizer_on_disk import Way
from torch import nn

RANK = 8


class Adapted(nn.Module):
    """A frozen linear layer with an adapter, whose second factor begins at zero."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Any) -> Any:
        return self.linear(x) + self.up(self.down(x))


def adapt(module: nn.Module) -> None:
    """Puts an adapter beside each linear layer of the module."""
    for name, child in module.named_children():
        if isinstance(child, nn.Linear):
            setattr(module, name, Adapted(child))
        else:
            adapt(child)


def new_way(name: str) -> Way:
    torch.manual_seed(0)
    model = base.Gpt().requires_grad_(False)
    adapt(model.blocks)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Way(name, model, torch.optim.AdamW(trained, lr=1e-3))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a folder on the disk")
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each way")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds of the planner")
    parser.add_argument("-o", "--output", help="the table as a file, beside the terminal")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    reprise.install_cpu_allocator()
    limit = arguments.time_limit
    numbers = range(2, 2 + base.WARM + arguments.rounds)

    def train(way: Way) -> None:
        for number in numbers:
            way.step(number, timed=number >= 2 + base.WARM)

    plain = new_way("plain training")
    frozen = sum(t.nbytes for t in plain.model.parameters() if not t.requires_grad)
    trained = sum(t.nbytes for t in plain.model.parameters() if t.requires_grad)
    peak = base.plain_peak(plain)
    train(plain)
    plain.end()
    disk: dict[str, Any] = {"offload": f"disk:{arguments.disk}"}
    questions: dict[str, dict[str, Any]] = {
        "recomputing alone": {},
        "activations on the disk": disk,
        "activations and the frozen weights on the disk": disk | {"offload_parameters": True},
        "the same within 60 % of plain's peak": disk
        | {"offload_parameters": True, "budget": peak * 60 // 100},
    }
    ways = [plain]
    for name, options in questions.items():
        way = new_way(name)
        way.step(0, timed=False)
        way.step(1, timed=False)  # as plain_peak() did
        data = base.batch(0)
        way.planned = reprise.capture(base.step_of(way.model), *data, optimizer=way.optimizer)
        if "offload" in options and "machine" not in disk:
            way.planned.plan(time_limit=limit, **options)
            disk["machine"] = options["machine"] = way.planned.machine()  # measured once
        elif "offload" in options:
            options["machine"] = disk["machine"]
        if "budget" in options:
            way.planned.plan(time_limit=limit, **options)
        else:
            base.smallest(way.planned, limit, **options)
        train(way)
        way.end()
        ways.append(way)
    about = [
        f"A GPT of {base.LAYERS} layers, width {base.WIDTH}, {base.ROWS} rows of {base.LENGTH} "
        "tokens, float32",
        f"All of it is frozen, with an adapter of rank {RANK} beside each linear layer of its "
        "blocks; AdamW trains these",
        f"{frozen:,} bytes of frozen weights, {trained:,} bytes of adapters",
    ]
    title = "Frozen weights on a disk"
    base.write(title, "the-parameters", about, ways, peak, disk["machine"], arguments)


if __name__ == "__main__":
    main()
