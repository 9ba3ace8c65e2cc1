"""The memory that optimizers of the program will take at their first step."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch

_Owner = TypeVar("_Owner")

# The memory of a tensor counts as a multiple of so many bytes, on the CPU and on other devices.
_GRANULE, _GRANULE_ELSEWHERE = 64, 512

# The options with which a step takes several parameters together. Its state has the same bytes.
_TOGETHER = ("foreach", "fused", "capturable", "differentiable")


class ForeseenState:
    """The state that optimizers will make for the parameters of a step. The runtime calls it.

    These are the optimizers of `torch.optim` that the program holds and that have at least one of
    the parameters. What an optimizer of another class will make is not known.

    Args:
        owner: What plans the step. The runtime, in which Python's collector sees nothing, does not
            keep it alive.
        parameters: Returns the parameters of the owner's step.
        inside: The optimizer whose updates are part of the step, which counts its state itself.
    """

    def __init__(
        self,
        owner: _Owner,
        parameters: Callable[[_Owner], Iterable[torch.Tensor]],
        inside: torch.optim.Optimizer | None = None,
    ) -> None:
        alive = weakref.ref(owner)

        def of_owner() -> list[torch.Tensor]:
            found = alive()
            return [] if found is None else list(parameters(found))

        self._parameters = of_owner
        self._inside = None if inside is None else weakref.ref(inside)
        self._missing: list[tuple[weakref.ref[torch.optim.Optimizer], torch.Tensor, int]] = []

    def look(self) -> None:
        """Looks for the optimizers again. The program may have made one since the last time."""
        parameters = self._parameters()
        trained = {id(p) for p in parameters if p.requires_grad}
        inside = None if self._inside is None else self._inside()
        counted = set() if inside is None else {id(p) for p in _parameters_of(inside)}
        device = next((p.device for p in parameters), torch.device("cpu"))
        self._missing = []
        for optimizer in _optimizers():
            if optimizer is inside or trained.isdisjoint(map(id, _parameters_of(optimizer))):
                continue
            sizes: dict[Any, int] = {}
            for g, group in enumerate(optimizer.param_groups):
                for parameter in group["params"]:
                    if id(parameter) in counted or not parameter.requires_grad:
                        continue
                    counted.add(id(parameter))
                    here = _local(parameter)
                    if here.device != device or optimizer.state.get(parameter):
                        continue
                    kind = (g, here.shape, here.dtype)
                    if kind not in sizes:
                        sizes[kind] = _state_bytes(optimizer, group, here)
                    if sizes[kind]:
                        self._missing.append((weakref.ref(optimizer), parameter, sizes[kind]))

    def __call__(self) -> int:
        """Returns the bytes of state that is not there yet."""
        if self._missing:
            self._missing = [row for row in self._missing if _is_missing(row[0](), row[1])]
        return sum(size for _, _, size in self._missing)


def _optimizers() -> list[torch.optim.Optimizer]:
    """Returns the optimizers of `torch.optim` that are alive."""
    kinds = set(_plain_kinds(torch.optim.Optimizer))
    return [one for one in gc.get_objects() if type(one) in kinds]


def _plain_kinds(kind: type) -> Iterator[type]:
    """Yields PyTorch's own classes below a class.

    A class of somebody else may be a wrapper of another optimizer, whose step is a real one.
    """
    derived: list[type] = kind.__subclasses__()
    for below in derived:
        if below.__module__.startswith("torch.optim."):
            yield below
        yield from _plain_kinds(below)


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _local(parameter: torch.Tensor) -> torch.Tensor:
    """Returns this rank's part of a sharded parameter, or the parameter."""
    return getattr(parameter, "_local_tensor", parameter)


def _is_missing(optimizer: torch.optim.Optimizer | None, parameter: torch.Tensor) -> bool:
    return optimizer is not None and not optimizer.state.get(parameter)


def _state_bytes(
    optimizer: torch.optim.Optimizer, group: dict[str, Any], parameter: torch.Tensor
) -> int:
    """Returns the bytes of a parameter's state: a twin makes it for a parameter without memory."""
    stand_in = torch.nn.Parameter(torch.empty_like(parameter, device="meta"))
    stand_in.grad = torch.empty_like(stand_in)
    options = {name: value for name, value in group.items() if name != "initial_lr"}
    options |= {name: False for name in _TOGETHER if name in options} | {"params": [stand_in]}
    kind: Any = type(optimizer)
    try:
        twin = kind([options])
        with torch.no_grad():
            inspect.unwrap(kind.step)(twin)  # The step itself, without the hooks of all optimizers.
    except Exception:  # Such a step needs a closure, or numbers that are not there.
        return 0
    made = [value for value in twin.state[stand_in].values() if isinstance(value, torch.Tensor)]
    on_cpu = parameter.device.type == "cpu"
    granule = _GRANULE if on_cpu else _GRANULE_ELSEWHERE
    return sum(-(-t.nbytes // granule) * granule for t in made if on_cpu or t.is_meta)
