"""Singular value decompositions whose derivatives stay finite for equal and for zero values."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from .._torch import _runtime


class Svd(NamedTuple):
    """A matrix of m x n numbers is `u @ diag(s) @ v.mT`, with k = min(m, n).

    Attributes:
        u: m x k, with orthonormal columns.
        s: k numbers, descending, not negative.
        v: n x k, with orthonormal columns.
    """

    u: Tensor
    s: Tensor
    v: Tensor


def svd_halves(a: Tensor, keep: int) -> tuple[Tensor, Tensor]:
    """Returns the halves `u * s.sqrt()` and `v * s.sqrt()` for the largest singular values.

    Use the halves for results that stay the same when one orthogonal matrix turns both. Networks
    of tensors have such results. Their gradients are right for equal and for zero singular values,
    too. No gradient exists if the cut at `keep` separates two equal values. `create_graph=True` is
    refused.

    Args:
        a: A matrix of m x n float or double numbers.
        keep: The number of values to keep, at least 1.

    Returns:
        The left half, m x keep, and the right half, n x keep.

    Raises:
        InputError: `a` is no such matrix, `keep` is below 1, or LAPACK finds no decomposition.

    Examples:
        >>> left, right = reprise.nn.svd_halves(torch.randn(6, 4), 2)
        >>> nearest_of_rank_two = left @ right.mT
    """
    return _runtime.svd_halves(a, keep)


def safe_svd(a: Tensor) -> Svd:
    """Returns the whole decomposition of a matrix.

    Its gradient is right where all singular values differ, and finite everywhere (Liao et al.,
    arXiv 1903.09650, with a rule for sums of zero values). Derivatives of derivatives follow the
    same rules.

    Args:
        a: A matrix of m x n float or double numbers.

    Raises:
        InputError: `a` is no such matrix, or LAPACK finds no decomposition.
    """
    return Svd(*_runtime.safe_svd(a))


def svd_tangent(of: Svd, da: Tensor, keep: int | None = None) -> Svd:
    """Returns the change of a decomposition when its matrix changes in the direction `da`.

    It is the derivative in forward mode. Gradients run through `of` and `da`, so that a chain
    whose stages carry a value and its tangent has a second derivative after the backward pass.

    Args:
        of: The result of `safe_svd()` of a matrix of m x n numbers.
        da: A matrix of the same shape.
        keep: The number of singular values and vectors whose change is returned; None for all.

    Raises:
        InputError: The shapes or types do not agree, or `keep` is below 1.
    """
    return Svd(*_runtime.svd_tangent((of.u, of.s, of.v), da, len(of.s) if keep is None else keep))
