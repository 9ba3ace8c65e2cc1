"""Layers whose work the ranks of a process group share out.

Between two linear layers, or two convolutions, with an activation between them each rank computes
some of the columns: it has these rows of the first weight and these columns of the second. Of an
attention each rank computes some of the heads. One sum over the ranks ends the forward, and one
ends the backward (Shoeybi et al., "Megatron-LM", 2019). In DTensor's words the weights have the
placements `Shard(0)` and `Shard(1)`, and the input and the output `Replicate()`.

Parameters stay whole on each rank, and so do their gradients: each rank computes the gradient of
its part, and all ranks gather the parts.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .collectives import all_gather, all_reduce

# They treat each element by itself, and draw no random numbers.
_ACTIVATIONS = (
    nn.GELU,
    nn.ReLU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.ELU,
    nn.LeakyReLU,
    nn.Hardswish,
    nn.Mish,
    nn.ReLU6,
    nn.Softplus,
)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# The arguments of an attention behind query, key and value.
_ATTENTION_ARGUMENTS = (
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "average_attn_weights",
    "is_causal",
)


def _distributed() -> Any:
    return torch.distributed


class _Entering(torch.autograd.Function):
    """Hands the input to the columns of this rank. Their gradients are summed over the ranks."""

    @staticmethod
    def forward(ctx: Any, x: Any, group: Any) -> Any:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        # The product that made the gradient has no other reader.
        gradient = gradient.contiguous()
        all_reduce(gradient, ctx.group)
        return gradient, None


class _Leaving(torch.autograd.Function):
    """Sums the products of all ranks, in place."""

    @staticmethod
    def forward(ctx: Any, y: Any, group: Any) -> Any:
        ctx.mark_dirty(y)
        all_reduce(y, group)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient, None


class _Part(torch.autograd.Function):
    """The part of a parameter that this rank computes with. All ranks get the whole gradient."""

    @staticmethod
    def forward(ctx: Any, whole: Any, dimension: int, group: Any) -> Any:
        ctx.group, ctx.dimension = group, dimension
        ctx.ranks = _distributed().get_world_size(group)
        length = whole.size(dimension) // ctx.ranks
        return whole.narrow(dimension, length * _distributed().get_rank(group), length)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gradient = gradient.contiguous()
        parts = gradient.new_empty((ctx.ranks, *gradient.shape))
        all_gather(parts.view(-1), gradient.view(-1), ctx.group)
        if ctx.dimension == 0:
            return parts.flatten(0, 1), None, None
        return torch.cat(list(parts), ctx.dimension), None, None


# PyTorch gives these functions no types.
_enter: Any = _Entering.apply
_leave: Any = _Leaving.apply
_part: Any = _Part.apply


def _is_plain(module: nn.Module) -> bool:
    """Returns whether a call of the module does nothing but its forward."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return "forward" not in module.__dict__ and not any(getattr(module, name) for name in hooks)


def _width(layer: Any) -> tuple[int, int]:
    """Returns how many columns or channels a layer reads and makes."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return layer.in_channels, layer.out_channels


def _can_be_parted(layer: Any) -> bool:
    known = type(layer) is nn.Linear or (type(layer) in _CONVOLUTIONS and layer.groups == 1)
    return known and _is_plain(layer) and not hasattr(layer, "parametrizations")


def begins_pair(layers: list[Any], at: int, ranks: int) -> bool:
    """Returns whether two layers with an activation between them begin here."""
    if at + 2 >= len(layers):
        return False
    first, activation, second = layers[at : at + 3]
    return (
        _can_be_parted(first)
        and type(first) is type(second)
        and _can_be_parted(second)
        and type(activation) in _ACTIVATIONS
        and _is_plain(activation)
        and _width(first)[1] == _width(second)[0]
        and _width(first)[1] % ranks == 0
    )


def _apply(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    if isinstance(layer, nn.Linear):
        return F.linear(x, weight, bias)
    return layer._conv_forward(x, weight, bias)


def run_pair(first: Any, activation: Any, second: Any, x: Any, group: Any) -> Any:
    bias = None if first.bias is None else _part(first.bias, 0, group)
    hidden = _apply(first, _enter(x, group), _part(first.weight, 0, group), bias)
    y = _apply(second, activation(hidden), _part(second.weight, 1, group), None)
    y = _leave(y, group)
    if second.bias is None:
        return y
    spatial = 0 if isinstance(second, nn.Linear) else len(second.kernel_size)
    return y.add_(second.bias.view(-1, *[1] * spatial))


def can_share_attention(module: Any, ranks: int) -> bool:
    """Returns whether the ranks can share out the heads of an attention."""
    return (
        type(module) is nn.MultiheadAttention
        and module._qkv_same_embed_dim
        and module.dropout == 0
        and module.bias_k is None
        and not module.add_zero_attn
        and module.num_heads % ranks == 0
        and _is_plain(module)
        and _is_plain(module.out_proj)
    )


def run_attention(
    module: Any, group: Any, query: Any, key: Any, value: Any, *arguments: Any, **keywords: Any
) -> Any:
    """Computes some of the heads on each rank. A call that wants more than that runs whole."""
    asked = dict(zip(_ATTENTION_ARGUMENTS, arguments, strict=False)) | keywords
    mask = asked.get("attn_mask")
    if (
        query.dim() != 3
        or asked.get("need_weights", True)
        or asked.get("key_padding_mask") is not None
        or (mask is not None and mask.dim() != 2)
    ):
        return type(module).forward(module, query, key, value, *arguments, **keywords)
    entered = {id(x): _enter(x, group) for x in (query, key, value)}
    size = module.embed_dim
    weight = _part(module.in_proj_weight.view(3, size, size), 1, group)
    bias = module.in_proj_bias
    bias = [None] * 3 if bias is None else _part(bias.view(3, size), 1, group)
    heads = []
    for x, own_weight, own_bias in zip((query, key, value), weight, bias, strict=True):
        y: Any = F.linear(entered[id(x)], own_weight, own_bias)
        y = y if module.batch_first else y.transpose(0, 1)
        heads.append(y.unflatten(-1, (-1, module.head_dim)).transpose(1, 2))
    causal = bool(asked.get("is_causal", False))
    if mask is not None and mask.dtype == torch.bool:  # True stands for what is left out.
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, float("-inf"))
    q, k, v = heads
    y = F.scaled_dot_product_attention(
        q, k, v, attn_mask=None if causal else mask, is_causal=causal
    )
    y = y.transpose(1, 2).flatten(-2)
    y = y if module.batch_first else y.transpose(0, 1)
    y = _leave(F.linear(y, _part(module.out_proj.weight, 1, group)), group)
    return y if module.out_proj.bias is None else y.add_(module.out_proj.bias), None
