"""Decompositions of matrices: right results, finite gradients, second derivatives, refusals."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the runtime needs PyTorch")
import reprise  # noqa: E402
from reprise.nn import safe_svd, svd_halves, svd_tangent  # noqa: E402


def matrix(*values: float) -> Any:
    """Returns a matrix of 6 x 4 numbers with these singular values."""
    torch.manual_seed(3)
    left, _ = torch.linalg.qr(torch.randn(6, 4, dtype=torch.double))
    right, _ = torch.linalg.qr(torch.randn(4, 4, dtype=torch.double))
    return left @ torch.diag(torch.tensor(values, dtype=torch.double)) @ right.mT


def test_a_matrix_is_the_product_of_its_parts() -> None:
    a = matrix(4, 3, 2, 1)
    u, s, v = safe_svd(a)
    assert torch.allclose(u @ torch.diag(s) @ v.mT, a)
    left, right = svd_halves(a, 2)
    nearest = u[:, :2] @ torch.diag(s[:2]) @ v[:, :2].mT
    assert torch.allclose(left @ right.mT, nearest)


@pytest.mark.parametrize("values", [(2, 2, 1, 1), (3, 1, 0, 0), (1, 1, 1, 1)])
def test_gradients_are_finite_for_equal_and_zero_values(values: tuple[float, ...]) -> None:
    a = matrix(*values).requires_grad_()
    u, s, v = safe_svd(a)
    (u.sum() + s.sum() + v.sum()).backward()
    assert a.grad is not None and a.grad.isfinite().all()
    a.grad = None
    left, right = svd_halves(a, 2)
    (left @ right.mT).square().sum().backward()
    assert a.grad is not None and a.grad.isfinite().all()


def test_gradients_are_those_of_differences() -> None:
    assert torch.autograd.gradcheck(
        lambda a: safe_svd(a).s, (matrix(4, 3, 2, 1).requires_grad_(),), raise_exception=True
    )
    a = matrix(4, 2, 2, 0.5).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a: (lambda halves: halves[0] @ halves[1].mT)(svd_halves(a, 3)), (a,)
    )


def test_a_tangent_is_the_change_along_a_direction() -> None:
    a, da = matrix(4, 3, 2, 1), matrix(1, 2, 0.5, 3)
    tangent = svd_tangent(safe_svd(a), da, 3)
    step = 1e-6
    change = (safe_svd(a + step * da).s - safe_svd(a - step * da).s) / (2 * step)
    assert tangent.s.shape == (3,) and tangent.u.shape == (6, 3)
    assert torch.allclose(tangent.s, change[:3], atol=1e-7)


def test_bad_input_is_refused() -> None:
    with pytest.raises(reprise.InputError, match="matrix"):
        safe_svd(torch.ones(2, 2, 2))
    with pytest.raises(reprise.InputError):
        svd_halves(torch.ones(2, 2), 0)
    with pytest.raises(reprise.InputError):
        safe_svd(torch.full((2, 2), float("nan")))
