"""The networks of the comparison, each a list of stages: functions of tensors that return a tuple
of tensors. No dropout, nothing in place, float32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

Tensors = tuple[torch.Tensor, ...]
Stage = Callable[..., Tensors]


@dataclass
class Network:
    module: nn.Module
    stages: list[Stage]
    x: torch.Tensor
    y: torch.Tensor


class GptBlock(nn.Module):
    def __init__(self, width: int, heads: int = 4, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).unbind(2)
        q, k, v = (part.transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.proj(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Embed(nn.Module):
    def __init__(self, vocabulary: int, width: int, length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.randn(length, width) * 0.02)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.tokens(ids) + self.positions


class Residual(nn.Module):
    """Makes the basic block of two convolutions, or the bottleneck of three."""

    def __init__(self, inside: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        outside = 4 * width if bottleneck else width
        self.body = nn.Sequential(
            *conv_norm(inside, width, 1 if bottleneck else 3, 1 if bottleneck else stride),
            nn.ReLU(),
            *conv_norm(width, width, 3, stride if bottleneck else 1),
            *((nn.ReLU(), *conv_norm(width, outside, 1, 1)) if bottleneck else ()),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.skip = nn.Sequential(*conv_norm(inside, outside, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.skip(x))


def conv_norm(inside: int, outside: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outside)]


def of_modules(modules: list[nn.Module], x: torch.Tensor, y: torch.Tensor) -> Network:
    def stage(module: nn.Module) -> Stage:
        return lambda value: (module(value),)

    return Network(nn.Sequential(*modules), [stage(module) for module in modules], x, y)


def gpt(small: bool) -> Network:
    layers, width, length, batch = (4, 64, 64, 4) if small else (12, 256, 256, 4)
    vocabulary = 256 if small else 8192
    head = nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False), nn.Flatten(0, 1)
    )
    blocks = [GptBlock(width) for _ in range(layers)]
    x, y = (torch.randint(0, vocabulary, (batch, length)) for _ in range(2))
    return of_modules([Embed(vocabulary, width, length), *blocks, head], x, y.flatten())


def plain_gpt(vocabulary: int, width: int, length: int, layers: int) -> nn.Sequential:
    blocks = [GptBlock(width) for _ in range(layers)]
    head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
    return nn.Sequential(Embed(vocabulary, width, length), *blocks, *head)


def next_tokens(vocabulary: int, shape: tuple[int, int], seed: int) -> Tensors:
    """Returns random tokens and those behind them."""
    rows, length = shape
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, vocabulary, (rows, length + 1), generator=generator)
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def step_of(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def step(ids: torch.Tensor, next_ids: torch.Tensor) -> torch.Tensor:
        loss = F.cross_entropy(model(ids).flatten(0, 1), next_ids.flatten())
        loss.backward()
        return loss

    return step


def images(batch: int, classes: int = 100, side: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,))


def mean_head(inside: int, classes: int = 100) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1), nn.Linear(inside, classes))


def resnet(
    depths: tuple[int, ...], bottleneck: bool, batch: int, classes: int = 100, side: int = 64
) -> Network:
    stem = nn.Sequential(*conv_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    modules: list[nn.Module] = [stem]
    inside = 64
    for i, depth in enumerate(depths):
        for j in range(depth):
            stride = 2 if i > 0 and j == 0 else 1
            modules.append(Residual(inside, 64 << i, stride, bottleneck))
            inside = (256 if bottleneck else 64) << i
    return of_modules([*modules, mean_head(inside, classes)], *images(batch, classes, side))


def resnet18(small: bool) -> Network:
    return resnet((1, 1), False, 4) if small else resnet((2, 2, 2, 2), False, 64)


def resnet50(small: bool) -> Network:
    return resnet((1, 1), True, 4) if small else resnet((3, 4, 6, 3), True, 32)


def resnet101(small: bool) -> Network:
    return resnet((1, 2), True, 4) if small else resnet((3, 4, 23, 3), True, 32)


def vgg16_bn(small: bool) -> Network:
    modules: list[nn.Module] = []
    inside = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for i in range(count):
            block = nn.Sequential(*conv_norm(inside, width, 3), nn.ReLU())
            if i == count - 1:
                block.append(nn.MaxPool2d(2))
            modules.append(block)
            inside = width
    return of_modules([*modules, mean_head(inside)], *images(2 if small else 16))


class Unit(nn.Module):
    """A residual unit, to which the deepest level adds attention."""

    def __init__(self, inside: int, width: int, attention: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8 if inside % 8 == 0 else 1, inside),
            nn.SiLU(),
            nn.Conv2d(inside, width, 3, 1, 1),
            nn.GroupNorm(8, width),
            nn.SiLU(),
            nn.Conv2d(width, width, 3, 1, 1),
        )
        self.skip = nn.Conv2d(inside, width, 1) if inside != width else nn.Identity()
        self.norm = nn.GroupNorm(8, width) if attention else None
        if attention:
            self.qkv, self.proj = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.body(x) + self.skip(x)
        if self.norm is None:
            return x
        batch, width, high, wide = x.shape
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, -1)
        seen = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
        return x + self.proj(seen.reshape(batch, width, high, wide))


def unet(small: bool) -> Network:
    return unet_of(*((2, 8) if small else (8, 32)))


def unet_of(batch: int, base: int, side: int = 64) -> Network:
    """Makes a U-Net. Its stages hand the skips on in a tuple, and work on the last tensor of it."""
    widths = [base, 2 * base, 4 * base, 6 * base]
    module = nn.ModuleList()
    stages: list[Stage] = []

    def add(part: nn.Module, stage: Callable[[nn.Module], Stage]) -> None:
        module.append(part)
        stages.append(stage(part))

    def through(part: nn.Module) -> Stage:
        return lambda *xs: (*xs[:-1], part(xs[-1]))

    def down(part: nn.Module) -> Stage:
        return lambda *xs: (*xs, part(xs[-1]))

    def up(part: nn.Module) -> Stage:
        return lambda *xs: (*xs[:-2], torch.cat((part(xs[-1]), xs[-2]), 1))

    add(nn.Conv2d(3, widths[0], 3, 1, 1), through)
    inside = widths[0]
    for level, width in enumerate(widths):
        deepest = level == len(widths) - 1
        for _ in range(2):
            add(Unit(inside, width, deepest), through)
            inside = width
        if not deepest:
            add(nn.AvgPool2d(2), down)
    for width in reversed(widths[:-1]):
        add(nn.ConvTranspose2d(inside, width, 2, 2), up)
        add(Unit(2 * width, width, False), through)
        add(Unit(width, width, False), through)
        inside = width
    head = nn.Sequential(nn.GroupNorm(8, inside), nn.SiLU(), nn.Conv2d(inside, 16, 1))
    add(head, through)
    x = images(batch, side=side)[0]
    return Network(module, stages, x, torch.randint(0, 16, (batch, side, side)))


NETWORKS: dict[str, Callable[[bool], Network]] = {
    "gpt": gpt,
    "unet": unet,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "vgg16_bn": vgg16_bn,
}
