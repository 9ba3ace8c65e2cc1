"""Everything that a training step may change, as bytes that no budget counts."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from subject import Subject

Image = dict[str, bytes]


class State:
    """Everything that a step may change, as bytes on the host."""

    def __init__(self, subject: Subject, device: torch.device) -> None:
        self.subject, self.device = subject, device
        self.first = {name: image(t) for name, t in subject.model.state_dict().items()}

    def put_back(self, optimizer: torch.optim.Optimizer | None) -> None:
        """Puts parameters, buffers and random numbers back to the beginning; drops gradients."""
        self.subject.model.zero_grad()
        with torch.no_grad():
            for name, tensor in self.subject.model.state_dict().items():
                tensor.copy_(tensor_of(self.first[name], tensor))
        if optimizer is not None:
            for values in optimizer.state.values():
                for one in values.values():
                    if isinstance(one, torch.Tensor):
                        one.zero_()
        torch.manual_seed(11)

    def now(self, loss: torch.Tensor | None = None) -> Image:
        """Returns all that the promises are about, by name, in memory that no budget counts."""
        found = {f"value {n}": image(t) for n, t in self.subject.model.state_dict().items()}
        for name, parameter in self.subject.model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient {name}"] = image(parameter.grad)
        if loss is not None:
            found["loss"] = image(loss)
        return found | {"random state": image(random_state(self.device))}


def image(tensor: torch.Tensor) -> bytes:
    """Returns the bytes of a tensor."""
    host = tensor.detach().cpu().contiguous()
    return ctypes.string_at(host.data_ptr(), host.numel() * host.element_size())


def tensor_of(data: bytes, like: torch.Tensor) -> torch.Tensor:
    """Returns a tensor on the host with these bytes."""
    return torch.frombuffer(bytearray(data), dtype=like.dtype).view(like.shape)


def random_state(device: torch.device) -> torch.Tensor:
    if device.type == "cpu":
        return torch.get_rng_state()
    state: torch.Tensor = torch.get_device_module(device.type).get_rng_state(device)
    return state


def first_difference(one: Image, other: Image) -> str:
    """Returns the name of the first part that differs in a bit, or ""."""
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            return f"{name} is missing in one"
        if one[name] != other[name]:
            return name
    return ""
