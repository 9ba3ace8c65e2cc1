"""All that a step may change, as it was before: for steps that are only tried."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from .python_state import PythonState

PutBack = Callable[[], None]


def _image(tensor: torch.Tensor) -> PutBack:
    """Copies a tensor to host memory that no budget counts. The result puts the bytes back."""
    host = tensor.detach().cpu().contiguous()
    image = host.view(-1).view(torch.uint8).numpy().tobytes() if host.numel() else b""

    def put_back() -> None:
        if not image:
            return
        flat = torch.frombuffer(bytearray(image), dtype=torch.uint8)
        # Writing to .data hides the write from autograd, which need not know of it.
        tensor.data.copy_(flat.view(tensor.dtype).view(tensor.shape))

    return put_back


def _gradient_of(leaf: torch.Tensor) -> PutBack:
    """Notes the gradient of a leaf. The result puts the tensor back, with its bytes."""
    gradient = leaf.grad
    if gradient is None or gradient.is_sparse:
        fill: PutBack | None = None
    else:
        fill = _image(gradient)

    def put_back() -> None:
        leaf.grad = gradient
        if fill is not None:
            fill()

    return put_back


def _optimizer(optimizer: torch.optim.Optimizer) -> PutBack:
    """Notes the state of an optimizer: its tensors, and the numbers of its groups."""
    state = {key: dict(value) for key, value in optimizer.state.items() if isinstance(value, dict)}
    groups = [dict(group) for group in optimizer.param_groups]
    fills = [  # A learning rate may be a tensor, too.
        _image(item)
        for values in [*state.values(), *groups]
        for item in values.values()
        if isinstance(item, torch.Tensor)
    ]

    def put_back() -> None:
        optimizer.state.clear()
        optimizer.state.update({key: dict(value) for key, value in state.items()})
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
        for fill in fills:
            fill()

    return put_back


def _copied(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Returns a value whose lists and dicts are copies. Appends the tensors that it meets."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
    if isinstance(value, dict):
        twin = copy.copy(value)  # of the same class, as that of a defaultdict
        twin.update((key, _copied(item, tensors)) for key, item in value.items())
        return twin
    return [_copied(item, tensors) for item in value] if isinstance(value, list) else value


def _schedule(schedule: Any) -> PutBack:
    """Notes the attributes of a schedule of learning rates, or of a gradient scaler."""
    is_scaler = isinstance(schedule, torch.amp.GradScaler)
    if is_scaler and schedule.is_enabled() and schedule._scale is None:
        # Its first call makes the scale. Later the step may have recorded it, so it has to stay.
        schedule.scale(torch.zeros((), device=schedule._device))
    tensors: list[torch.Tensor] = []
    attributes = _copied(schedule.__dict__, tensors)
    fills = [_image(tensor) for tensor in tensors]

    def put_back() -> None:
        schedule.__dict__.clear()
        schedule.__dict__.update(_copied(attributes, []))
        for fill in fills:
            fill()

    return put_back


def _random_states() -> PutBack:
    """Notes the random states of PyTorch, of Python and of NumPy."""
    cuda: Any = torch.cuda
    host = torch.get_rng_state()
    devices = cuda.get_rng_state_all() if cuda.is_initialized() else []
    python, numpy = random.getstate(), sys.modules.get("numpy")
    array: Any = None if numpy is None else numpy.random.get_state()

    def put_back() -> None:
        torch.set_rng_state(host)
        if devices:
            cuda.set_rng_state_all(devices)
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(array)

    return put_back


class Before:
    """The state before a step that is only tried.

    It holds parameters, buffers, gradients, the inputs, the state of optimizers, of schedules and
    of gradient scalers, random states, and what the step reaches in Python. The copies lie in host
    memory that no budget counts.

    Args:
        steps: The functions that are tried.
        modules: The modules of the step.
        optimizers: The optimizers of the step.
        inputs: The tensors that the step is called with.
        schedules: The schedules of learning rates, and the gradient scalers.
        updates: Whether the step may write its parameters. Otherwise there is no copy of them.
    """

    def __init__(
        self,
        steps: Sequence[Callable[..., Any]],
        modules: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        inputs: Sequence[torch.Tensor],
        schedules: Sequence[Any] = (),
        *,
        updates: bool = True,
    ) -> None:
        owners = {id(o): o for o in optimizers}
        owners |= {id(s.optimizer): s.optimizer for s in schedules if hasattr(s, "optimizer")}
        optimizers = list(owners.values())
        parameters = [p for module in modules for p in module.parameters()]
        parameters += [p for o in optimizers for group in o.param_groups for p in group["params"]]
        buffers = [b for module in modules for b in module.buffers()]
        leaves = {id(t): t for t in [*parameters, *inputs] if t.is_leaf and t.requires_grad}
        written = [*(parameters if updates else []), *buffers, *inputs]
        dense = {id(t): t for t in written if t.layout == torch.strided}
        self._gradients = [_gradient_of(leaf) for leaf in leaves.values()]
        self._bytes = [_image(tensor) for tensor in dense.values()]
        self._optimizers = [_optimizer(optimizer) for optimizer in optimizers]
        self._schedules = [_schedule(schedule) for schedule in schedules]
        self._random = _random_states()
        self._python = PythonState([*steps, *modules])

    def put_back(self, *, python: bool = True) -> None:
        """Puts everything back, but what lies in Python only if it is asked for.

        It may be called many times.
        """
        if python:
            self._python.put_back()
        with torch.no_grad():
            for notes in (self._gradients, self._bytes, self._optimizers, self._schedules):
                for put_back in notes:
                    put_back()
            self._random()
