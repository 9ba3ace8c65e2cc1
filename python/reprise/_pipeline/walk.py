"""One step of a rank of a pipeline: the order of its actions, and the messages under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .._step.stages import loss_argument
from .._step.tree import Tree, flatten, rebuild
from ..errors import InputError
from .peers import Peers

# The loss of training: it makes a tensor of one element of the last output and the target.
PipelineLoss = Callable[[Any, Any], torch.Tensor]


@dataclass
class Part:
    """A part of this rank: its number, the runtime's part, and the structures of its boundaries."""

    number: int
    native: Any
    trees: list[Tree | None]


def with_target(loss: PipelineLoss, target: Any) -> Callable[[Any], torch.Tensor]:
    """Returns the loss as a function of the output."""
    return lambda output: loss(output, target)


class Walk:
    """The order of this rank in one step."""

    def __init__(
        self,
        peers: Peers,
        parts: dict[int, Part],
        last: int,
        loss: PipelineLoss | None,
        micro_batches: list[Any],
        targets: list[Any],
        losses: Any,
    ) -> None:
        self._peers, self._parts, self._last, self._loss = peers, parts, last, loss
        self._batches, self._targets, self._losses = micro_batches, targets, losses
        # The works of the messages under way: whether one is an activation, the part, the
        # micro-batch. The works hold the memory of the messages until they are dropped.
        self._coming: dict[tuple[bool, int, int], list[Any]] = {}
        self._going: dict[tuple[bool, int, int], list[Any]] = {}

    def run(self, order: list[list[Any]]) -> None:
        """Walks the actions of a plan."""
        for action in order:
            kind = action[0]
            if kind == "forward":
                self._forward(action[1], action[2])
            elif kind in ("backward", "input_gradient"):
                self._backward(action[1], action[2], kind == "input_gradient")
            elif kind == "weight_gradient":
                self._parts[action[1]].native.weight_gradient(action[2])
            elif kind == "receive":
                self._receive(action[1] == "activation", action[2], action[3])
            elif kind == "send":
                self._send(action[1] == "activation", action[2], action[3])
            elif kind == "wait":
                self._sent(action[1] == "activation", action[2], action[3])
            else:
                raise InputError(f"the parts of a pipeline do not run the action {action}")

    def _forward(self, part: int, batch: int) -> None:
        mine = self._parts[part].native
        self._arrive(True, part, batch)
        if part == 0:
            mine.give(batch, self._batches[batch])
        elif part - 1 in self._parts:
            mine.take_input_from(self._parts[part - 1].native, batch)
        mine.forward(batch)

    def _backward(self, part: int, batch: int, split: bool) -> None:
        mine = self._parts[part]
        run = mine.native.input_gradient if split else mine.native.backward
        self._arrive(False, part, batch)
        if part == self._last:
            assert self._loss is not None
            loss = loss_argument(with_target(self._loss, self._targets[batch]), mine.trees)
            run(batch, loss, self._losses[batch : batch + 1])
            return
        if part + 1 in self._parts:
            mine.native.take_gradient_from(self._parts[part + 1].native, batch)
        run(batch, None, None)

    def _receive(self, activation: bool, part: int, batch: int) -> None:
        sender = (part - 1 if activation else part + 1) % self._peers.size
        rooms = self._parts[part].native.receive(batch, activation)
        works = [self._peers.receive(room, sender) for room in rooms]
        self._coming[activation, part, batch] = works

    def _arrive(self, activation: bool, part: int, batch: int) -> None:
        what = "activation" if activation else "gradient"
        works = self._coming.pop((activation, part, batch), [])
        while works:
            self._peers.wait(works.pop(0), f"the {what} of micro-batch {batch} for part {part}")

    def _send(self, activation: bool, part: int, batch: int) -> None:
        receiver = (part + 1 if activation else part - 1) % self._peers.size
        tensors = self._parts[part].native.message(batch, activation)
        works = [self._peers.send(tensor, receiver) for tensor in tensors]
        self._going[activation, part, batch] = works

    def _sent(self, activation: bool, part: int, batch: int) -> None:
        what = "activation" if activation else "gradient"
        works = self._going.pop((activation, part, batch))
        while works:
            self._peers.wait(
                works.pop(0), f"room for the {what} of micro-batch {batch} of part {part}"
            )
        self._parts[part].native.sent(batch, activation)


def cut(value: Any, what: str, micro_batches: int) -> list[Any]:
    """Returns the tensors of each micro-batch of a tuple of inputs, or each part of a target."""
    if value is None:
        return [None] * micro_batches
    tensors, tree = flatten(value, what)
    for tensor in tensors:
        if tensor.dim() == 0 or tensor.shape[0] % micro_batches:
            raise InputError(
                f"{what} has the shape {tuple(tensor.shape)}, and its first dimension cannot be "
                f"cut into {micro_batches} equal micro-batches"
            )
    parts = [tensor.chunk(micro_batches) for tensor in tensors]
    rows = [[part[b] for part in parts] for b in range(micro_batches)]
    return rows if what == "the input" else [rebuild(tree, row) for row in rows]
