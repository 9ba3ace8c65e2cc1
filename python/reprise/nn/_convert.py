"""Replaces layers of a model by layers that keep less."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn

from ..errors import InputError
from ._few_bit import FewBit
from ._in_place_abn import InPlaceABN
from ._xconv import XConv2d

Allow = Literal["rounding", "approximate"]
KINDS = ("in-place-abn", "few-bit", "xconv")


@dataclass(frozen=True)
class Converted:
    """A layer that was replaced.

    Attributes:
        path: The name of the layer in the model, "blocks.0.norm".
        kind: "in-place-abn", "few-bit" or "xconv".
        before: The layer that was there, as text.
        after: The layer that is there now.
        exactness: The kind of its gradients, "rounding" or "approximate".
    """

    path: str
    kind: str
    before: str
    after: str
    exactness: str


def convert(
    model: nn.Module,
    *,
    allow: Allow = "rounding",
    only: tuple[str, ...] | None = None,
    bits: int = 3,
    probes: int = 8,
) -> list[Converted]:
    """Replaces layers of a model, in place, by layers of `reprise.nn` that keep less.

    - "in-place-abn" (rounding): a batch norm with a leaky ReLU or an ELU right behind it in an
      `nn.Sequential` becomes an `InPlaceABN` and an `nn.Identity`.
    - "few-bit" (approximate): GELU, SiLU, Mish, hard-swish, softplus, tanh and sigmoid modules
      become a `FewBit`.
    - "xconv" (approximate): convolutions of images become an `XConv2d`.

    Parameters and buffers are shared, and the names of `state_dict()` stay what they were. Modules
    with hooks, of classes derived from PyTorch's, and options that a layer does not have are left
    alone.

    Args:
        model: The model. It is changed, and must not be one of these layers itself.
        allow: "approximate" allows approximate gradients, too.
        only: The kinds of replacement, from those above. The default is every allowed kind.
        bits: The bits of each `FewBit`.
        probes: The probes of each `XConv2d`.

    Returns:
        The layers that were replaced, in the order of the model.

    Raises:
        InputError: `allow` or `only` is wrong, or a kind is approximate and not allowed.

    Examples:
        >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(), nn.GELU())
        >>> [one.path for one in reprise.nn.convert(net)]
        ['1']
        >>> [one.kind for one in reprise.nn.convert(net, allow="approximate")]
        ['xconv', 'few-bit']
    """
    if allow not in ("rounding", "approximate"):
        raise InputError(f"allow is 'rounding' or 'approximate', not {allow!r}")
    kinds = only if only is not None else KINDS[: 1 if allow == "rounding" else None]
    for kind in kinds:
        if kind not in KINDS:
            raise InputError(f"there is no kind {kind!r}: there are {', '.join(KINDS)}")
        if kind != "in-place-abn" and allow != "approximate":
            raise InputError(f"{kind!r} has approximate gradients: say allow='approximate'")
    found: list[Converted] = []
    done: dict[int, nn.Module] = {}  # a layer that several parents have is replaced once
    _convert(model, "", kinds, bits, probes, found, done)
    return found


def _convert(
    parent: nn.Module,
    prefix: str,
    kinds: tuple[str, ...],
    bits: int,
    probes: int,
    found: list[Converted],
    done: dict[int, nn.Module],
) -> None:
    children = list(parent._modules.items())
    for i, (name, child) in enumerate(children):
        if child is None:
            continue
        if id(child) in done:
            parent._modules[name] = done[id(child)]
            continue
        behind = children[i + 1] if i + 1 < len(children) else ("", None)
        new, kind = None, ""
        if not _has_hooks(child):
            if "in-place-abn" in kinds and type(parent) is nn.Sequential:
                new, kind = _in_place_abn(child, behind[1]), "in-place-abn"
            if new is None and "few-bit" in kinds:
                new, kind = _few_bit(child, bits), "few-bit"
            if new is None and "xconv" in kinds:
                new, kind = _xconv(child, probes), "xconv"
        if new is None:
            done[id(child)] = child
            _convert(child, f"{prefix}{name}.", kinds, bits, probes, found, done)
            continue
        exactness = "rounding" if kind == "in-place-abn" else "approximate"
        before = str(child)
        if kind == "in-place-abn":
            before += f", {behind[1]}"
            parent._modules[behind[0]] = children[i + 1][1] and nn.Identity()
            children[i + 1] = (behind[0], None)
        else:
            done[id(child)] = new
        parent._modules[name] = new
        found.append(Converted(f"{prefix}{name}", kind, before, str(new), exactness))


def _has_hooks(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def _in_place_abn(norm: nn.Module, activation: nn.Module | None) -> nn.Module | None:
    if type(norm) not in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return None
    if activation is None or _has_hooks(activation):
        return None
    assert isinstance(norm, nn.modules.batchnorm._BatchNorm)
    if type(activation) is nn.LeakyReLU and activation.negative_slope > 0:
        return InPlaceABN.of(norm, "leaky_relu", activation.negative_slope)
    if type(activation) is nn.ELU and activation.alpha > 0:
        return InPlaceABN.of(norm, "elu", activation.alpha)
    return None


_FEW_BIT: dict[type[nn.Module], Callable[[nn.Module], str | None]] = {
    nn.GELU: lambda m: "gelu" if m.approximate == "none" else "gelu-tanh",
    nn.SiLU: lambda m: "silu",
    nn.Mish: lambda m: "mish",
    nn.Hardswish: lambda m: "hard-swish",
    nn.Softplus: lambda m: "softplus" if (m.beta, m.threshold) == (1, 20) else None,  # type: ignore[comparison-overlap]
    nn.Tanh: lambda m: "tanh",
    nn.Sigmoid: lambda m: "sigmoid",
}


def _few_bit(layer: nn.Module, bits: int) -> nn.Module | None:
    name = _FEW_BIT.get(type(layer), lambda m: None)(layer)  # type: ignore[no-untyped-call]
    return None if name is None else FewBit(name, bits=bits).train(layer.training)


def _xconv(layer: nn.Module, probes: int) -> nn.Module | None:
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros":
        return None
    return None if isinstance(layer.padding, str) else XConv2d.of(layer, probes)
