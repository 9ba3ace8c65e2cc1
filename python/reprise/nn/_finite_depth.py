"""Machines of finite depth: networks with all shortcuts at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .._torch import _runtime
from ..errors import InputError


class FiniteDepth(nn.Module):
    """A machine of finite depth: blocks of numbers, each computed from all blocks before it.

    The layer of Vertechi and Bergomi (arXiv 2204.12786): z = z0 + activation(W z + b) with a
    strictly block-triangular W, solved block by block in one buffer. The backward pass is the same
    solver from the last block to the first, so that z is all that is kept. Gradients equal those of
    concatenations up to rounding.

    Args:
        sizes: The sizes of the blocks. The first is that of the input.
        activation: "relu", "leaky-relu", "tanh", "sigmoid" or "identity".
        whole: True returns all blocks, and False the last one.

    Raises:
        InputError: There are not two sizes above 0, or no such activation.

    Examples:
        >>> machine = reprise.nn.FiniteDepth([16, 32, 32, 10], activation="tanh")
        >>> machine(torch.randn(8, 16)).shape
        torch.Size([8, 10])
    """

    def __init__(
        self, sizes: Sequence[int], *, activation: str = "relu", whole: bool = False
    ) -> None:
        super().__init__()
        if len(sizes) < 2 or min(sizes) < 1:
            raise InputError(
                f"a machine of finite depth has at least two blocks of sizes above 0: {sizes}"
            )
        self.sizes, self.activation, self.whole = list(sizes), activation, whole
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        before = sizes[0]
        for size in sizes[1:]:
            bound = 1 / math.sqrt(before)
            self.weights.append(nn.Parameter(torch.empty(size, before).uniform_(-bound, bound)))
            self.biases.append(nn.Parameter(torch.empty(size).uniform_(-bound, bound)))
            before += size
        weights = [w.detach() for w in self.weights]
        _runtime.finite_depth(torch.zeros(1, sizes[0]), weights, list(self.biases), activation)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the last block, or all of them.

        Args:
            x: The first block, along the last dimension.

        Raises:
            InputError: The last dimension has another size.
        """
        z = _runtime.finite_depth(x, list(self.weights), list(self.biases), self.activation)
        return z if self.whole else z[..., -self.sizes[-1] :]

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return f"{self.sizes}, activation={self.activation!r}, whole={self.whole}"
