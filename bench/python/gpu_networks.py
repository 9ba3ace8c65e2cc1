"""The networks of the GPU benchmark at the sizes of their publications, and at small sizes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from networks import Embed, GptBlock, Network, images, of_modules, resnet, unet_of
from torch import nn


def gpt(batch: int, quick: bool) -> Network:
    """GPT-2 medium: 24 layers of width 1024, 16 heads, 1024 tokens. The vocabulary is padded."""
    layers, width, heads, length = (4, 64, 4, 64) if quick else (24, 1024, 16, 1024)
    vocabulary = 256 if quick else 50304
    blocks = [GptBlock(width, heads) for _ in range(layers)]
    head = nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False), nn.Flatten(0, 1)
    )
    x, y = (torch.randint(0, vocabulary, (batch, length)) for _ in range(2))
    return of_modules([Embed(vocabulary, width, length), *blocks, head], x, y.flatten())


def resnet50(batch: int, quick: bool) -> Network:
    """ResNet-50 on images of 224 x 224."""
    if quick:
        return resnet((1, 1), True, batch)
    return resnet((3, 4, 6, 3), True, batch, classes=1000, side=224)


def unet(batch: int, quick: bool) -> Network:
    """A U-Net of four levels, from 64 channels on, with attention at the deepest: 256 x 256."""
    return unet_of(batch, 8, 32) if quick else unet_of(batch, 64, 256)


class Patches(nn.Module):
    """Cuts an image into patches of 16 x 16 and adds positions."""

    def __init__(self, side: int, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 16, 16)
        self.positions = nn.Parameter(torch.randn((side // 16) ** 2, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.cut(x).flatten(2).transpose(1, 2) + self.positions


class MeanHead(nn.Module):
    """Classifies by the mean over patches."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.out(self.norm(x).mean(1))
        return logits


def vit(batch: int, quick: bool) -> Network:
    """ViT-L/16: 24 layers of width 1024, 16 heads, images of 224 x 224."""
    layers, width, heads, side = (4, 64, 4, 64) if quick else (24, 1024, 16, 224)
    blocks = [GptBlock(width, heads, causal=False) for _ in range(layers)]
    classes = 100 if quick else 1000
    x, y = images(batch, classes, side)
    return of_modules([Patches(side, width), *blocks, MeanHead(width, classes)], x, y)


# Each network with the batch at which the benchmark begins to look at its memory.
GPU_NETWORKS: dict[str, tuple[Callable[[int, bool], Network], int]] = {
    "gpt": (gpt, 2),
    "resnet50": (resnet50, 16),
    "unet": (unet, 4),
    "vit": (vit, 8),
}
QUICK_BATCH = 4


def on_device(network: Network, device: torch.device) -> Network:
    network.module.to(device)  # The stages use these same modules.
    return Network(network.module, network.stages, network.x.to(device), network.y.to(device))
