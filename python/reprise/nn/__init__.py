"""Layers that keep less for the backward pass than plain ones, for steps that are not captured.

This module needs PyTorch. `docs/layers.md` says what each layer keeps, and how close its gradients
are.

    swish = reprise.nn.ForwardAD(lambda x: x * x.sigmoid())
    y = swish(x)
    y = reprise.nn.mish(x)  # ready activations, as functions and as modules
"""

from __future__ import annotations

from ._compressed import Compressed, compressed
from ._convert import Converted, convert
from ._few_bit import FewBit, few_bit, few_bit_table
from ._finite_depth import FiniteDepth
from ._in_place_abn import InPlaceABN
from ._reversible import Reversible, ReversibleSequence
from ._svd import Svd, safe_svd, svd_halves, svd_tangent
from ._tiled import (
    GELU,
    ForwardAD,
    GeGLU,
    Hardswish,
    InTile,
    Mish,
    SiLU,
    SwiGLU,
    Swish,
    geglu,
    gelu,
    hardswish,
    mish,
    silu,
    swiglu,
    swish,
)
from ._xconv import XConv2d

__all__ = [
    "GELU",
    "Compressed",
    "Converted",
    "FewBit",
    "FiniteDepth",
    "ForwardAD",
    "GeGLU",
    "Hardswish",
    "InPlaceABN",
    "InTile",
    "Mish",
    "Reversible",
    "ReversibleSequence",
    "SiLU",
    "Svd",
    "SwiGLU",
    "Swish",
    "XConv2d",
    "compressed",
    "convert",
    "few_bit",
    "few_bit_table",
    "geglu",
    "gelu",
    "hardswish",
    "mish",
    "safe_svd",
    "silu",
    "svd_halves",
    "svd_tangent",
    "swiglu",
    "swish",
]
