"""Clipping by the norm of all gradients without holding all gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ..errors import InputError


def clipped_backward(
    loss: Callable[[], torch.Tensor], module: nn.Module, max_norm: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes gradients that are clipped by the norm of all of them, in two passes.

    The first pass makes every gradient for its norm alone, and drops it. The second pass makes it
    again, already multiplied. So no gradient waits for the others, and a step that was captured
    with its optimizer frees each one as soon as it is used. Gradients have the bits of
    `loss().backward()` and `torch.nn.utils.clip_grad_norm_(module.parameters(), max_norm)`, if
    there are none before; that was tested on CPUs. They are added to those that are there, which
    are not clipped.

    Forward and backward run twice, which takes twice the time. Where the memory of all gradients is
    there, call `clip_grad_norm_()` in the captured step.

    Args:
        loss: A function that computes the loss. It is called twice and draws no random numbers.
        module: The module whose parameters get gradients. Its buffers change as by one forward.
        max_norm: The largest norm.

    Returns:
        The loss and the norm of all gradients before clipping.

    Raises:
        InputError: The loss draws random numbers, or no parameter gets a gradient.

    Examples:
        >>> def clipped(x, y):
        ...     return reprise.clipped_backward(
        ...         lambda: nn.functional.cross_entropy(plain(x), y), plain, max_norm=1.0
        ...     )
        >>> captured = reprise.capture(clipped, x, y, optimizer=optimizer)
    """
    parameters = [one for one in module.parameters() if one.requires_grad]
    norms: dict[int, torch.Tensor] = {}
    states = _random_states(parameters)
    buffers = [(one, one.detach().clone()) for one in module.buffers()]

    def note(at: int, gradient: torch.Tensor) -> None:
        norms[at] = torch.linalg.vector_norm(gradient)

    with _hooked(parameters, note):
        torch.autograd.grad(loss(), parameters, allow_unused=True)
    if not norms:
        raise InputError("no parameter of the module gets a gradient from this loss")
    if not all(map(torch.equal, states, _random_states(parameters))):
        raise InputError(
            "the loss draws random numbers (dropout), and clipped_backward() computes it twice: "
            "the second pass would draw others. Call clip_grad_norm_() behind backward() instead"
        )
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
        first = norms[min(norms)]
        total = torch.linalg.vector_norm(
            torch.stack([norms[at].to(first.device) for at in sorted(norms)])
        )
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)

    def scaled(_: int, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * factor.to(gradient.device)

    with _hooked(parameters, scaled):
        value = loss()
        torch.autograd.backward(value)
    return value, total


@contextmanager
def _hooked(
    parameters: list[nn.Parameter], call: Callable[[int, torch.Tensor], Any]
) -> Iterator[None]:
    """Calls a function with the position and the gradient of each parameter."""
    hooks = [
        one.register_hook(lambda gradient, at=at: call(at, gradient))  # type: ignore[no-untyped-call]
        for at, one in enumerate(parameters)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _random_states(parameters: list[nn.Parameter]) -> list[torch.Tensor]:
    devices = {one.device for one in parameters if one.device.type == "cuda"}
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state(one) for one in devices)]
