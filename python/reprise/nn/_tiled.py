"""Element-wise functions that keep less for the backward pass: nested Forward-AD.

An activation that is written out makes autograd keep a tensor for each of its operations. Here it
runs tile by tile, and one tensor is kept: the derivative (`ForwardAD`), or the input (`InTile`).
The method is that of Guo et al., arXiv 2209.10778. This module needs PyTorch.

    swish = reprise.nn.ForwardAD(lambda x: x * x.sigmoid())
    y = swish(x)
    y = reprise.nn.mish(x)  # ready activations, as functions and as modules
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from .._torch import _runtime
from ..errors import InputError

__all__ = [
    "GELU",
    "ForwardAD",
    "GeGLU",
    "Hardswish",
    "InTile",
    "Mish",
    "SiLU",
    "SwiGLU",
    "Swish",
    "geglu",
    "gelu",
    "hardswish",
    "mish",
    "silu",
    "swiglu",
    "swish",
]

Keep = Literal["derivative", "operands"]


class _Tiled(nn.Module):
    def __init__(
        self,
        fn: Callable[..., Tensor],
        keep_operands: bool,
        storage: torch.dtype | None,
        tile: int | None,
    ) -> None:
        super().__init__()
        self.fn = fn
        self._options = (keep_operands, storage, tile or 0)
        self._make()

    def _make(self) -> None:
        keep_operands, storage, tile = self._options
        self._function = _runtime.TiledFunction(
            self.fn, keep_operands=keep_operands, storage=storage, tile=tile
        )

    def forward(self, x: Tensor, *more: Tensor) -> Tensor:
        """Returns the function of these tensors, which are broadcast to one shape."""
        return self._function.run([x, *more])

    # A copied or unpickled module makes a function of its own.
    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name != "_function"}

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._make()


class ForwardAD(_Tiled):
    """An element-wise function whose derivative alone is kept for the backward pass.

    The function runs tile by tile. Where a gradient is needed, the derivative of each tile is
    computed with it, by a backward pass of the tile with a gradient of ones. The later backward
    pass is one multiplication. With several inputs that require a gradient, one derivative is kept
    for each. Results are bitwise those of the function if all inputs have one shape and layout, and
    each thread has 32,768 elements or there is one thread; with `storage=torch.int8`, only if there
    is one thread. Gradients are equal up to rounding: for activations in float32 to about 2e-7 of
    the largest one.

    The module is refused what it cannot do with an `InputError`: a function that is not
    element-wise, that is random, that changes its input, or that uses a tensor that requires a
    gradient and is no input; inputs of integers. A second derivative is a `RuntimeError`.

    Args:
        fn: The element-wise function of one or more tensors. It sees tiles, so it must not depend
            on shapes. Several threads may call it at the same time.
        storage: The type in which the derivative is kept, if not that of the input. With
            `torch.float16`, `torch.bfloat16` or `torch.int8` gradients are approximate. With
            `torch.int8` each 256 elements share a scale.
        tile: The elements of a tile, a multiple of 4,096. The default is 65,536 on the CPU.

    Raises:
        InputError: `storage` or `tile` is none of the above.

    Examples:
        >>> swish = reprise.nn.ForwardAD(lambda x: x * x.sigmoid())
        >>> swish(torch.ones(3, requires_grad=True)).sum().backward()
    """

    def __init__(
        self,
        fn: Callable[..., Tensor],
        *,
        storage: torch.dtype | None = None,
        tile: int | None = None,
    ) -> None:
        super().__init__(fn, False, storage, tile)


class InTile(_Tiled):
    """An element-wise function whose inputs alone are kept for the backward pass.

    The backward pass runs the function again, tile by tile, so that no inner tensor exists as a
    whole. Results and gradients are bitwise those of the function if all inputs have one shape and
    layout, the incoming gradient has that layout, too, and each thread has 32,768 elements or there
    is one thread. Otherwise they are equal up to rounding.
    Functions that `ForwardAD` refuses are refused here, too.

    Args:
        fn: The element-wise function, as for `ForwardAD`.
        tile: The elements of a tile, a multiple of 4,096. The default is 65,536 on the CPU.

    Raises:
        InputError: `tile` is no multiple of 4,096.

    Examples:
        >>> mish = reprise.nn.InTile(lambda x: x * nn.functional.softplus(x).tanh())
        >>> mish(torch.ones(3, requires_grad=True)).sum().backward()
    """

    def __init__(self, fn: Callable[..., Tensor], *, tile: int | None = None) -> None:
        super().__init__(fn, True, None, tile)


@functools.cache
def _activation(name: str, keep: Keep, storage: torch.dtype | None) -> _runtime.TiledFunction:
    if keep not in ("derivative", "operands"):
        raise InputError(f"keep is 'derivative' or 'operands', not {keep!r}")
    if keep == "operands" and storage is not None:
        raise InputError("storage is for keep='derivative'; operands are kept as they are")
    return _runtime.TiledFunction.activation(
        name, keep_operands=keep == "operands", storage=storage
    )


def _gelu(approximate: str) -> str:
    if approximate not in ("none", "tanh"):
        raise InputError(f"approximate is 'none' or 'tanh', not {approximate!r}")
    return "gelu-erf" if approximate == "none" else "gelu-tanh"


def gelu(
    x: Tensor,
    approximate: str = "none",
    *,
    keep: Keep = "derivative",
    storage: torch.dtype | None = None,
) -> Tensor:
    """Returns x / 2 * (1 + erf(x / sqrt(2))), or its form with tanh (arXiv 1606.08415).

    Args:
        x: The input, of any shape.
        approximate: "none" for erf, or "tanh".
        keep: "derivative" keeps the tensors of `ForwardAD`, "operands" those of `InTile`.
        storage: The type in which derivatives are kept, as for `ForwardAD`.

    Raises:
        InputError: An argument is wrong, or the tensors are none of real numbers.
    """
    return _activation(_gelu(approximate), keep, storage).run([x])


def silu(
    x: Tensor,
    *,
    keep: Keep = "derivative",
    storage: torch.dtype | None = None,
) -> Tensor:
    """Returns x * sigmoid(x), which is called Swish, too (arXiv 1710.05941).

    Args:
        x: The input, of any shape.
        keep: "derivative" keeps the tensors of `ForwardAD`, "operands" those of `InTile`.
        storage: The type in which derivatives are kept, as for `ForwardAD`.

    Raises:
        InputError: An argument is wrong, or the tensors are none of real numbers.
    """
    return _activation("swish", keep, storage).run([x])


swish = silu


def mish(
    x: Tensor,
    *,
    keep: Keep = "derivative",
    storage: torch.dtype | None = None,
) -> Tensor:
    """Returns x * tanh(softplus(x)) (arXiv 1908.08681).

    Args:
        x: The input, of any shape.
        keep: "derivative" keeps the tensors of `ForwardAD`, "operands" those of `InTile`.
        storage: The type in which derivatives are kept, as for `ForwardAD`.

    Raises:
        InputError: An argument is wrong, or the tensors are none of real numbers.
    """
    return _activation("mish", keep, storage).run([x])


def hardswish(
    x: Tensor,
    *,
    keep: Keep = "derivative",
    storage: torch.dtype | None = None,
) -> Tensor:
    """Returns x * relu6(x + 3) / 6 (arXiv 1905.02244).

    Args:
        x: The input, of any shape.
        keep: "derivative" keeps the tensors of `ForwardAD`, "operands" those of `InTile`.
        storage: The type in which derivatives are kept, as for `ForwardAD`.

    Raises:
        InputError: An argument is wrong, or the tensors are none of real numbers.
    """
    return _activation("hard-swish", keep, storage).run([x])


def swiglu(
    gate: Tensor,
    value: Tensor,
    *,
    keep: Keep = "derivative",
    storage: torch.dtype | None = None,
) -> Tensor:
    """Returns silu(gate) * value (arXiv 2002.05202).

    Args:
        gate: The input of the activation.
        value: The factor of the result; `gate` and `value` are broadcast to one shape.
        keep: "derivative" keeps the tensors of `ForwardAD`, "operands" those of `InTile`.
        storage: The type in which derivatives are kept, as for `ForwardAD`.

    Raises:
        InputError: An argument is wrong, or the tensors are none of real numbers.
    """
    return _activation("swiglu", keep, storage).run([gate, value])


def geglu(
    gate: Tensor,
    value: Tensor,
    *,
    keep: Keep = "derivative",
    storage: torch.dtype | None = None,
) -> Tensor:
    """Returns gelu(gate) * value (arXiv 2002.05202).

    Args:
        gate: The input of the activation.
        value: The factor of the result; `gate` and `value` are broadcast to one shape.
        keep: "derivative" keeps the tensors of `ForwardAD`, "operands" those of `InTile`.
        storage: The type in which derivatives are kept, as for `ForwardAD`.

    Raises:
        InputError: An argument is wrong, or the tensors are none of real numbers.
    """
    return _activation("geglu", keep, storage).run([gate, value])


class _Activation(nn.Module):
    def __init__(self, *, keep: Keep = "derivative", storage: torch.dtype | None = None) -> None:
        super().__init__()
        self.keep, self.storage = keep, storage

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return f"keep={self.keep!r}, storage={self.storage}"


class GELU(_Activation):
    """The function `gelu()` as a module, with the same options."""

    def __init__(
        self,
        approximate: str = "none",
        *,
        keep: Keep = "derivative",
        storage: torch.dtype | None = None,
    ) -> None:
        super().__init__(keep=keep, storage=storage)
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """Returns `gelu()` of a tensor."""
        return gelu(x, self.approximate, keep=self.keep, storage=self.storage)


class SiLU(_Activation):
    """The function `silu()` as a module, with the same options."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns `silu()` of a tensor."""
        return silu(x, keep=self.keep, storage=self.storage)


Swish = SiLU


class Mish(_Activation):
    """The function `mish()` as a module, with the same options."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns `mish()` of a tensor."""
        return mish(x, keep=self.keep, storage=self.storage)


class Hardswish(_Activation):
    """The function `hardswish()` as a module, with the same options."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns `hardswish()` of a tensor."""
        return hardswish(x, keep=self.keep, storage=self.storage)


class SwiGLU(_Activation):
    """The function `swiglu()` as a module, with the same options."""

    def forward(self, gate: Tensor, value: Tensor) -> Tensor:
        """Returns `swiglu()` of two tensors."""
        return swiglu(gate, value, keep=self.keep, storage=self.storage)


class GeGLU(_Activation):
    """The function `geglu()` as a module, with the same options."""

    def forward(self, gate: Tensor, value: Tensor) -> Tensor:
        """Returns `geglu()` of two tensors."""
        return geglu(gate, value, keep=self.keep, storage=self.storage)
