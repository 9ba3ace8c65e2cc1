"""Fine-tunes a frozen GPT with adapters while values, and then its weights, may lie on a disk.

The network is that of optimizer_on_disk.py. All of its weights are frozen, and each linear layer
of its blocks has a trained adapter of low rank beside it, as in LoRA (E. Hu et al., 2022). The ways
are measured as there: each trains a copy of the same network on the same batches, at the smallest
budget for which it found a plan, and its parameters and moments are compared with plain training's,
bit by bit. The last way has a larger budget, in which a part of the weights stays in memory.
"""

from __future__ import annotations

from typing import Any

import optimizer_on_disk as base
import torch
from networks import plain_gpt
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
    model = plain_gpt(base.VOCABULARY, base.WIDTH, base.LENGTH, base.LAYERS).requires_grad_(False)
    adapt(model[1:-2])  # the blocks
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return Way(name, model, torch.optim.AdamW(trained, lr=1e-3))


def main() -> None:
    def about(model: Any, optimizer: Any) -> list[str]:
        frozen = sum(t.nbytes for t in model.parameters() if not t.requires_grad)
        trained = sum(t.nbytes for t in model.parameters() if t.requires_grad)
        return [
            f"A GPT of {base.LAYERS} layers, width {base.WIDTH}, {base.ROWS} rows of {base.LENGTH} "
            "tokens, float32",
            f"All of it is frozen, with an adapter of rank {RANK} beside each linear layer of its "
            "blocks; AdamW trains these",
            f"{frozen:,} bytes of frozen weights, {trained:,} bytes of adapters",
        ]

    def questions(disk: dict[str, Any], peak: int) -> dict[str, dict[str, Any]]:
        with_weights = disk | {"offload_parameters": True}
        return {
            "recomputing alone": {},
            "activations on the disk": {**disk},
            "activations and the frozen weights on the disk": {**with_weights},
            "the same within 60 % of plain's peak": with_weights | {"budget": peak * 60 // 100},
        }

    title = "Frozen weights on a disk"
    base.compare(__doc__, title, "the-parameters", new_way, about, questions)


if __name__ == "__main__":
    main()
