"""Reversible networks: the backward pass computes inputs from outputs, and keeps no activations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from .._step.modules import modules_of
from .._torch import _runtime
from ..errors import InputError

Branch = Callable[[Tensor], Tensor]
Streams = Literal["fixed", "float"]


class _BranchCall:
    """A branch as a function from a list of tensors to a list of tensors."""

    def __init__(self, name: str, function: Branch) -> None:
        self.name, self.function = name, function

    def __call__(self, tensors: list[Tensor]) -> list[Tensor]:
        try:
            result = self.function(tensors[0])
        except Exception as error:
            if hasattr(error, "add_note"):  # Exceptions have notes from Python 3.11 on.
                error.add_note(f"in branch '{self.name}' of a reversible network")
            raise
        if not isinstance(result, torch.Tensor):
            raise InputError(
                f"branch '{self.name}' of a reversible network returns a "
                f"{type(result).__name__}: it is to return one tensor"
            )
        return [result]


class _Network(nn.Module):
    def __init__(self, streams: Streams, fraction_bits: int, dim: int, reverse: bool) -> None:
        super().__init__()
        if streams not in ("fixed", "float"):
            raise InputError(f"streams is 'fixed' or 'float', not {streams!r}")
        if not 1 <= fraction_bits <= 52:
            raise InputError(f"fraction_bits is 1 to 52, not {fraction_bits}")
        self.streams, self.fraction_bits, self.dim, self.reverse = (
            streams,
            fraction_bits,
            dim,
            reverse,
        )
        self._native: _runtime.Reversible | None = None
        self._made_for: list[int] = []

    def _branches(self) -> list[tuple[str, Branch]]:
        raise NotImplementedError

    def _ready(self) -> _runtime.Reversible:
        """Returns the runtime's network, made anew if modules, parameters or buffers changed."""
        branches = self._branches()
        made_for = [id(function) for _, function in branches]
        if self._native is None or self._made_for != made_for or not self._native.refresh():
            self._native = _runtime.Reversible(
                [(name, _BranchCall(name, f), modules_of(f)) for name, f in branches],
                fixed=self.streams == "fixed",
                fraction_bits=self.fraction_bits,
            )
            self._made_for = made_for
        return self._native

    @overload
    def forward(self, x: Tensor) -> Tensor: ...
    @overload
    def forward(self, x: Tensor, x2: Tensor) -> tuple[Tensor, Tensor]: ...
    def forward(self, x: Tensor, x2: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """Runs the blocks.

        Args:
            x: The first stream; or both, which are then its halves along `dim`.
            x2: The second stream.

        Returns:
            Both streams as a tuple if both were given, else joined along `dim`.

        Raises:
            InputError: The inputs or a branch cannot be used, or numbers left the range of fixed
                point.
        """
        if x2 is not None:
            return self._ready().run(x, x2, reverse=self.reverse)
        if not -x.dim() <= self.dim < x.dim() or x.shape[self.dim] % 2:
            raise InputError(
                f"a reversible network halves its input along dimension {self.dim}, so that this "
                f"must have an even size: the shape is {tuple(x.shape)}. Give two tensors otherwise"
            )
        first, second = x.chunk(2, self.dim)
        return torch.cat(self._ready().run(first, second, reverse=self.reverse), self.dim)

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        bits = f", fraction_bits={self.fraction_bits}" if self.streams == "fixed" else ""
        return f"streams={self.streams!r}{bits}, dim={self.dim}, reverse={self.reverse}"

    # A copied or unpickled module makes a network of its own.
    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_native": None, "_made_for": []}


class Reversible(_Network):
    """One reversible block: y1 = x1 + f(x2), y2 = x2 + g(y1).

    A block is a part of a `ReversibleSequence`, or a network of its own. The options are those of
    `ReversibleSequence`, which has its own when the block is a part of it.

    Args:
        f: A module or function of one tensor that returns one of the first stream's shape.
        g: The same for the second stream.
        streams: As for `ReversibleSequence`.
        fraction_bits: As for `ReversibleSequence`.
        dim: As for `ReversibleSequence`.
        reverse: As for `ReversibleSequence`.

    Raises:
        InputError: A branch is no function, or an option is wrong.

    Examples:
        >>> block = reprise.nn.Reversible(nn.Linear(64, 64), nn.Linear(64, 64))
        >>> y1, y2 = block(torch.randn(8, 64), torch.randn(8, 64))
        >>> (y1 + y2).sum().backward()
    """

    def __init__(
        self,
        f: Branch,
        g: Branch,
        *,
        streams: Streams = "fixed",
        fraction_bits: int = 20,
        dim: int = 1,
        reverse: bool = True,
    ) -> None:
        super().__init__(streams, fraction_bits, dim, reverse)
        for name, branch in (("f", f), ("g", g)):
            if not callable(branch):
                raise InputError(f"{name} is no module or function but a {type(branch).__name__}")
        self.f, self.g = f, g

    def _branches(self) -> list[tuple[str, Branch]]:
        return [("f", self.f), ("g", self.g)]


class ReversibleSequence(_Network):
    """Reversible blocks one after the other, in memory that does not grow with their number.

    The backward pass computes the inputs of each block from its outputs (Gomez et al.,
    arXiv 1707.04585). With fixed-point streams this is exact: results and gradients are bitwise
    those of the same network with `reverse=False`, which is plain training of it. `docs/layers.md`
    has the conditions.

    Args:
        *blocks: `Reversible` blocks.
        streams: "fixed" holds the two streams as multiples of 2**-fraction_bits, whose sums can be
            undone to the bit. "float" holds them as they are; the error of the inverse grows with
            the depth.
        fraction_bits: Numbers stay in [-2**(31 - fraction_bits), 2**(31 - fraction_bits)), which is
            checked. 1 to 30, and to 52 for float64.
        dim: The dimension along which one input is halved.
        reverse: False keeps all activations, as plain training does. It is an attribute, too.

    Raises:
        InputError: There is no block, or an option is wrong.

    Examples:
        >>> def branch():
        ...     return nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64), nn.GELU())
        >>> blocks = [reprise.nn.Reversible(branch(), branch()) for _ in range(8)]
        >>> net = reprise.nn.ReversibleSequence(*blocks)
        >>> net(torch.randn(16, 128)).sum().backward()
    """

    def __init__(
        self,
        *blocks: Reversible,
        streams: Streams = "fixed",
        fraction_bits: int = 20,
        dim: int = 1,
        reverse: bool = True,
    ) -> None:
        super().__init__(streams, fraction_bits, dim, reverse)
        if not blocks:
            raise InputError("a reversible network needs at least one block")
        for i, block in enumerate(blocks):
            if not isinstance(block, Reversible):
                raise InputError(
                    f"block {i} is a {type(block).__name__}, not a reprise.nn.Reversible: a block "
                    "has two branches, Reversible(f, g)"
                )
            self.add_module(str(i), block)

    def _branches(self) -> list[tuple[str, Branch]]:
        return [
            (f"{name}.{letter}", branch)
            for name, block in self._modules.items()
            if isinstance(block, Reversible)
            for letter, branch in block._branches()
        ]
