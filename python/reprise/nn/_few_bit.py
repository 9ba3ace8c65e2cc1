"""Activations whose backward pass keeps 1 to 5 bits an element: few-bit backward."""

from __future__ import annotations

from torch import Tensor, nn

from .._torch import _runtime


def few_bit(x: Tensor, name: str = "gelu", *, bits: int = 3) -> Tensor:
    """Returns an activation whose derivative is constant between a few boundaries.

    The result is PyTorch's. The gradient is approximate: the level of the step that `x` is in,
    times the incoming gradient (Novikov et al., arXiv 2202.00441). Only the number of the step is
    kept.

    Args:
        x: The input, of any shape.
        name: gelu, gelu-tanh, silu, mish, hard-swish, softplus, elu, tanh or sigmoid, with 1 to 5
            bits; or regelu2, resilu2 (arXiv 2406.16282), with 2 bits.
        bits: The bits an element, from 1 to 5.

    Raises:
        InputError: There is no such activation or table, or `x` has no real numbers.
    """
    return _runtime.few_bit(name, x, bits)


def few_bit_table(name: str = "gelu", *, bits: int = 3) -> tuple[list[float], list[float]]:
    """Returns the boundaries and the levels of an activation: level `i` ends at boundary `i`.

    Args:
        name: The activation, as for `few_bit()`.
        bits: The bits an element, from 1 to 5.

    Raises:
        InputError: There is no such activation or table.
    """
    return _runtime.few_bit_table(name, bits)


class FewBit(nn.Module):
    """The function `few_bit()` as a module.

    Args:
        name: The activation, as for `few_bit()`.
        bits: The bits an element, from 1 to 5.

    Raises:
        InputError: There is no such activation or table.

    Examples:
        >>> layer = nn.Sequential(nn.Linear(128, 64), reprise.nn.FewBit("silu", bits=2))
        >>> layer(torch.ones(3, 128)).sum().backward()
    """

    def __init__(self, name: str = "gelu", *, bits: int = 3) -> None:
        super().__init__()
        few_bit_table(name, bits=bits)
        self.name, self.bits = name, bits

    def forward(self, x: Tensor) -> Tensor:
        """Returns `few_bit()` of a tensor."""
        return few_bit(x, self.name, bits=self.bits)

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return f"{self.name!r}, bits={self.bits}"
