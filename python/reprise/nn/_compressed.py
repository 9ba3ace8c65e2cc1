"""Saved tensors in fewer bits: what autograd keeps is encoded, and decoded in the backward pass."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from .._torch import _runtime
from ..errors import InputError

Codec = Literal["range", "olive"]


class _Saved:
    """A tensor as its codec keeps it."""

    def __init__(self, encoded: _runtime.Encoded) -> None:
        self.encoded = encoded


class compressed:
    """A scope in which autograd keeps floating-point tensors in 8, 4 or 2 bits an element.

    A tensor is encoded when autograd saves it, and decoded when the backward pass reads it (Chen et
    al., arXiv 2104.14129; Liu et al., arXiv 2206.11357). Groups of elements share a range. Results
    are those of plain training, and gradients are approximate: each element that a backward formula
    reads is off by at most half a step of its group, or by less than a step and right in the mean
    with `stochastic`. The backward pass may run outside of the scope.

    The codec "olive" is for tensors with a few large elements (Guo et al., arXiv 2304.07493): such
    an outlier takes the bits of its neighbour, which becomes zero, so that it does not make the
    steps of its group coarse. It has no bound in steps, because a neighbour is lost however large
    it is.

    Attributes:
        plain_bytes: The bytes of all tensors that were encoded.
        kept_bytes: The bytes that they took instead.
        largest_error: The largest error of an element of them: a bound for "range", and what was
            found for "olive". NaN if one was not finite.

    Args:
        *excluded: Modules and tensors whose memory is there anyway: their parameters, buffers and
            numbers are kept as they are. Give the model, and perhaps its input.
        bits: 8, 4 or 2; 8 or 4 for "olive".
        group: The elements that share a range or a step, a multiple of 16.
        stochastic: Round at random, so that decoded numbers are right in the mean. The random
            numbers are those of `seed`, and not PyTorch's.
        seed: As said.
        smallest: Tensors of fewer elements are kept as they are.
        codec: "range" or "olive".

    Raises:
        InputError: An argument is wrong.

    Examples:
        >>> with reprise.nn.compressed(plain, x, bits=4) as kept:
        ...     loss = nn.functional.cross_entropy(plain(x), y)
        >>> loss.backward()
        >>> kept.kept_bytes < kept.plain_bytes / 4
        True
    """

    def __init__(
        self,
        *excluded: nn.Module | Tensor,
        bits: int = 8,
        group: int = 256,
        stochastic: bool = False,
        seed: int = 0,
        smallest: int = 4096,
        codec: Codec = "range",
    ) -> None:
        self._excluded = _storages(excluded)
        self._options: Any = {
            "bits": bits,
            "group": group,
            "stochastic": stochastic,
            "codec": codec,
        }
        _runtime.encode(torch.zeros(1), seed=0, **self._options)  # checks them
        self._seed, self._smallest = seed, smallest
        self._hooks: Any = None
        # The tensors that were saved already, by the memory and the version of the tensor.
        self._known: dict[Any, tuple[StorageWeakRef, weakref.ref[_Saved]]] = {}
        self._encoded: list[weakref.ref[_Saved]] = []
        self._largest_error = 0.0
        self.plain_bytes = 0
        self.kept_bytes = 0

    @property
    def largest_error(self) -> float:
        """The largest error of an element."""
        return self._largest_error

    def __enter__(self) -> compressed:
        if self._hooks is not None:
            raise InputError("this scope is open already: make another one")
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        self._hooks.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._hooks.__exit__(kind, error, trace)
        self._hooks = None
        self._known.clear()

    def _pack(self, tensor: Tensor) -> Any:
        if not self._wanted(tensor):
            return tensor
        storage = tensor.untyped_storage()
        place = (storage._cdata, tensor.storage_offset(), tensor.shape, tensor.stride())
        key = (*place, tensor.dtype, tensor._version)
        if key in self._known:
            alive, reference = self._known[key]
            saved = reference()
            if saved is not None and not alive.expired():  # type: ignore[no-untyped-call]
                return saved
        self._seed += 1
        encoded = _runtime.encode(tensor, seed=self._seed, **self._options)
        saved = _Saved(encoded)
        self._known[key] = (StorageWeakRef(storage), weakref.ref(saved))  # type: ignore[no-untyped-call]
        self.plain_bytes += tensor.nbytes
        self.kept_bytes += encoded.bytes
        error = encoded.largest_error()
        if math.isnan(error) or error > self._largest_error:
            self._largest_error = error
        return saved

    def _wanted(self, tensor: Tensor) -> bool:
        plain = type(tensor) in (Tensor, nn.Parameter) and tensor.layout == torch.strided
        return (
            plain
            and tensor.is_floating_point()
            and tensor.numel() >= self._smallest
            and tensor.untyped_storage().nbytes() >= tensor.nbytes  # it is not expanded
            and not tensor.is_neg()
            and tensor.untyped_storage()._cdata not in self._excluded
        )

    @staticmethod
    def _unpack(saved: Any) -> Tensor:
        return _runtime.decode(saved.encoded) if isinstance(saved, _Saved) else saved


def _storages(excluded: Iterable[Any]) -> dict[int, Any]:
    """Returns the storages of modules and tensors by their addresses; they stay alive."""
    found: dict[int, Any] = {}
    for one in excluded:
        if isinstance(one, nn.Module):
            tensors = [*one.parameters(), *one.buffers()]
        elif isinstance(one, Tensor):
            tensors = [one]
        else:
            raise InputError(f"a module or a tensor is excluded, not a {type(one).__name__}")
        for tensor in tensors:
            storage = tensor.untyped_storage()
            found[storage._cdata] = storage
    return found


class Compressed(nn.Module):
    """Runs a module in a scope of `compressed()`.

    The scope leaves the module's parameters and buffers alone.

    Args:
        module: The module.
        bits: As for `compressed()`.
        group: As for `compressed()`.
        stochastic: As for `compressed()`.
        seed: As for `compressed()`.
        smallest: As for `compressed()`.
        codec: As for `compressed()`.

    Raises:
        InputError: An argument is wrong.

    Examples:
        >>> layer = reprise.nn.Compressed(nn.Sequential(nn.Linear(128, 64), nn.Tanh()), bits=8)
        >>> layer(torch.randn(256, 128)).sum().backward()
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        bits: int = 8,
        group: int = 256,
        stochastic: bool = False,
        seed: int = 0,
        smallest: int = 4096,
        codec: Codec = "range",
    ) -> None:
        super().__init__()
        self.options: Any = {
            "bits": bits,
            "group": group,
            "stochastic": stochastic,
            "codec": codec,
        }
        self.smallest, self.seed = smallest, seed
        compressed(**self.options)
        self.module = module

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        """Runs the module."""
        scope = compressed(self.module, seed=self.seed, smallest=self.smallest, **self.options)
        with scope:
            result = self.module(*arguments, **keywords)
        self.seed = scope._seed  # the next call rounds with other random numbers
        return result

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return ", ".join(f"{name}={value}" for name, value in self.options.items())
