"""Models for the tests, written the way people write them, and plain training to compare with."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


class ModelOutput(OrderedDict[str, Any]):
    """A dataclass that is a dict, too, like the outputs of the Transformers library."""

    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


@dataclass
class LanguageOutput(ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None


@dataclass
class GptConfig:
    vocabulary: int = 97
    width: int = 32
    heads: int = 4
    layers: int = 3
    positions: int = 24
    dropout: float = 0.1


class GptBlock(nn.Module):
    def __init__(self, config: GptConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        seen = self.proj(seen.transpose(1, 2).reshape(batch, time, width))
        x = x + F.dropout(seen, self.dropout, self.training)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), self.dropout, self.training)


class GptLMHeadModel(nn.Module):
    """A model with keyword inputs, the loss inside, a dataclass as output and tied embeddings."""

    def __init__(self, config: GptConfig | None = None) -> None:
        super().__init__()
        self.config = config or GptConfig()
        self.tokens = nn.Embedding(self.config.vocabulary, self.config.width)
        self.positions = nn.Embedding(self.config.positions, self.config.width)
        self.blocks = nn.ModuleList(GptBlock(self.config) for _ in range(self.config.layers))
        self.norm = nn.LayerNorm(self.config.width)
        self.head = nn.Linear(self.config.width, self.config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor | None = None,
        output_hidden_states: bool = False,
        return_dict: bool = True,
    ) -> Any:
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(positions)
        states = [x]
        for block in self.blocks:
            x = block(x)
            states.append(x)
        logits = self.head(self.norm(x))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        hidden = tuple(states) if output_hidden_states else None
        if not return_dict:
            return (loss, logits)
        return LanguageOutput(loss=loss, logits=logits, hidden_states=hidden)


class BasicBlock(nn.Module):
    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """A small model like torchvision's."""

    def __init__(self, width: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(
            BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1)
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layer2(self.layer1(self.relu(self.bn1(self.conv1(x)))))
        return self.fc(torch.flatten(self.avgpool(x), 1))

    def stages(self) -> list[Callable[..., Any]]:
        stem = nn.Sequential(self.conv1, self.bn1, self.relu)
        return [stem, self.layer1, self.layer2, self.avgpool, nn.Flatten(1), self.fc]


def perceptron(depth: int = 6, width: int = 64, dropout: float = 0.1) -> nn.Sequential:
    """Returns nested Sequentials with a batch norm, dropout and an in-place activation."""
    layers = [
        nn.Sequential(
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            nn.ReLU(inplace=True),
            nn.Dropout(dropout),
        )
        for _ in range(depth)
    ]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Returns all that a step may change: gradients, parameters, buffers, the random state."""
    found = {
        f"{name}.grad": p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }
    found |= {name: value.clone() for name, value in model.state_dict().items()}
    return found | {"random state": torch.get_rng_state()}


def assert_same_bits(mine: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == plain.keys()
    different = [name for name in plain if not torch.equal(mine[name], plain[name])]
    assert not different


def copies(model: nn.Module, seed: int = 7) -> Iterator[nn.Module]:
    """Returns the model twice, made from the same random state."""
    for one in (copy.deepcopy(model), copy.deepcopy(model)):
        torch.manual_seed(seed)
        yield one


def vectors(count: int = 256) -> tuple[Any, Any]:
    return torch.randn(count, 64), torch.randint(0, 10, (count,))


def one_step(model: Callable[..., Any], x: Any, y: Any, seed: int = 3) -> Any:
    """Runs one step from a given random state and returns the loss."""
    torch.manual_seed(seed)
    output = model(x)
    loss = F.cross_entropy(output, y)
    loss.backward()
    return loss.detach()


def compare_steps(model: nn.Module, plain: nn.Module, x: Any, y: Any, steps: int = 2) -> None:
    """Runs steps of both models with an optimizer and compares every bit."""
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, plain)]
    for seed in range(steps):
        losses, states = [], []
        for one, optimizer in zip((model, plain), optimizers, strict=True):
            optimizer.zero_grad()
            losses.append(one_step(one, x, y, seed))
            states.append(state_of(one))
            optimizer.step()
        assert torch.equal(*losses)
        assert_same_bits(*states)


def simple_step(model: nn.Module) -> Any:
    def step(x: Any) -> Any:
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return step
