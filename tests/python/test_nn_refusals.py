"""ForwardAD and InTile: functions, inputs and options that are refused, and errors."""

from __future__ import annotations

from typing import Any

import pytest
import reprise
import torch
from test_nn import FUNCTIONS, Function, beta, threads  # noqa: F401 - threads is a fixture.
from torch import nn
from torch.nn import functional as F


def changes_its_input(x: Any) -> Any:
    return x.mul_(2)


def flipping(x: Any) -> Any:
    return torch.bernoulli(torch.full_like(x, 0.5)) * x


def not_diagonal(x: Any) -> Any:
    """The result is x, and its derivative is not diagonal."""
    return x + (x.sum() - x.sum().detach())


REFUSED: dict[str, tuple[Function, str]] = {
    "soft-max": (lambda x: x.softmax(-1), "not element-wise.*soft-max"),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[-1:]), "not element-wise"),
    "layer norm of a width": (lambda x: F.layer_norm(x, (100,)), "failed when it was tried out"),
    "sum": (lambda x: x.sum(), "not element-wise.*shape"),
    "centred": (lambda x: x - x.mean(), "not element-wise"),
    "cumulative": (lambda x: x.cumsum(0), "not element-wise"),
    "flipped": (lambda x: x.flip(0), "not element-wise"),
    "neighbours": (lambda x: F.pad(x, (1, 0))[..., :-1] + x, "not element-wise"),
    "not diagonal": (not_diagonal, "not (element-wise|diagonal)"),
    "dropout": (lambda x: F.dropout(x, 0.5), "random"),
    "bernoulli": (flipping, "random"),
    "in place": (changes_its_input, "in place"),
    "hidden parameter": (
        lambda x: x * (beta * x).sigmoid(),
        "requires a gradient and is no operand",
    ),
    "integers": (lambda x: x.int(), "not real numbers"),
    "no tensor": (lambda x: 1.0, "float and no tensor"),
}


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_are_refused(name: str, module: str) -> None:
    fn, message = REFUSED[name]
    x = torch.randn(20, 100)
    before, random = x.clone(), torch.get_rng_state()
    for given in (x.clone().requires_grad_(), torch.zeros(20, 100, requires_grad=True)):
        with pytest.raises(reprise.InputError, match=message):
            getattr(reprise.nn, module)(fn)(given)
    if name not in ("hidden parameter", "not diagonal"):  # nothing is lost without a gradient
        with torch.no_grad(), pytest.raises(reprise.InputError, match=message):
            getattr(reprise.nn, module)(fn)(x)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), random)


def test_a_parameter_that_is_hidden_later() -> None:
    later = torch.ones(())
    tiled = reprise.nn.ForwardAD(lambda x: x * later)
    x = torch.randn(100, requires_grad=True)
    tiled(x)
    later.requires_grad_()
    with pytest.raises(reprise.InputError, match="requires a gradient and is no operand"):
        tiled(x)
    with pytest.raises(reprise.InputError, match="requires a gradient and is no operand"):
        tiled(x.detach())
    with torch.no_grad():
        tiled(x)


def test_randomness_that_is_switched_on_later() -> None:
    drop = nn.Dropout(0.5).eval()
    tiled = reprise.nn.InTile(drop)
    x = torch.randn(100, requires_grad=True)
    tiled(x)
    drop.train()
    random = torch.get_rng_state()
    with pytest.raises(reprise.InputError, match="random"):
        tiled(x)
    assert torch.equal(torch.get_rng_state(), random)


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_inputs_that_are_refused(module: str) -> None:
    tiled = getattr(reprise.nn, module)(lambda x, *more: x * 2)
    x = torch.randn(8)
    wrong: list[tuple[list[Any], str]] = [
        ([torch.arange(8)], "operand 0.*Long"),
        ([x, torch.arange(8)], "operand 1.*Long"),
        ([x > 0], "no operand.*real numbers"),
        ([x.to(torch.complex64)], "operand 0.*Complex"),
        ([x.to_sparse()], "operand 0.*plain dense"),
        ([x, torch.empty(8, device="meta")], "operand 1.*meta"),
        ([x.double(), torch.tensor(1.0)], "one type"),
    ]
    for inputs, message in wrong:
        with pytest.raises(reprise.InputError, match=message):
            tiled(*inputs)
    with pytest.raises((RuntimeError, TypeError)):
        tiled("text")
    with pytest.raises(RuntimeError, match=r"size of tensor|broadcast"):
        tiled(torch.randn(8), torch.randn(9))


@pytest.mark.parametrize("module", ["ForwardAD", "InTile"])
def test_derivatives_that_are_refused(module: str) -> None:
    tiled = getattr(reprise.nn, module)(FUNCTIONS["swish"])
    x = torch.randn(8, requires_grad=True)
    with pytest.raises(RuntimeError, match=r"no second derivative.*create_graph"):
        torch.autograd.grad(tiled(x).sum(), x, create_graph=True)
    with pytest.raises(reprise.InputError, match=r"torch\.func"):
        torch.func.grad(lambda x: tiled(x).sum())(x)
    with pytest.raises(reprise.InputError, match=r"torch\.func"):
        torch.func.vmap(tiled)(torch.randn(3, 8))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x.detach(), torch.ones(8))  # type: ignore[no-untyped-call]
        with pytest.raises(reprise.InputError, match="forward-mode"):
            tiled(dual)


def test_options_that_are_refused() -> None:
    fn = FUNCTIONS["swish"]
    with pytest.raises(reprise.InputError, match="storage"):
        reprise.nn.ForwardAD(fn, storage=torch.float64)
    with pytest.raises(reprise.InputError, match="multiple of 4096"):
        reprise.nn.InTile(fn, tile=1000)
    with pytest.raises(reprise.InputError, match="approximate"):
        reprise.nn.gelu(torch.ones(2), "erf")
    with pytest.raises(reprise.InputError, match="keep"):
        reprise.nn.mish(torch.ones(2), keep="all")  # type: ignore[arg-type]
    with pytest.raises(reprise.InputError, match="storage"):
        reprise.nn.mish(torch.ones(2), keep="operands", storage=torch.float16)


@pytest.mark.usefixtures("threads")
def test_an_error_of_the_function_reaches_the_caller() -> None:
    class Stopped(Exception):
        pass

    seen = []

    def fn(x: Any) -> Any:
        if x.numel() > 64:
            seen.append(x.numel())
            raise Stopped
        return x.exp()

    x = torch.randn(200_000, requires_grad=True)
    with pytest.raises(Stopped):
        reprise.nn.ForwardAD(fn)(x)
    assert seen


def test_an_input_that_is_changed_before_the_backward() -> None:
    x = torch.randn(100, requires_grad=True) * 1
    result = reprise.nn.InTile(FUNCTIONS["swish"])(x)
    x.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
