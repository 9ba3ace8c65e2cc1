"""Convolutions whose weight gradients are estimated from projections of the input: XConv."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from .._torch import _runtime
from ..errors import InputError


class XConv2d(nn.Conv2d):
    """A convolution that keeps a few random projections of its input for the backward pass.

    Results, and the gradients of the input and the bias, have the bits of `nn.Conv2d`. The gradient
    of the weight is an estimate that is right in the mean (Louboutin et al., arXiv 2106.06998); its
    variance falls with the number of probes. Parameters are those of `nn.Conv2d`.

    Args:
        *arguments: As for `nn.Conv2d`.
        probes: The numbers that are kept for each sample and channel.
        **keywords: As for `nn.Conv2d`. `padding` is numbers, and `padding_mode` "zeros".

    Raises:
        InputError: There is no probe, or another padding.

    Examples:
        >>> layer = reprise.nn.XConv2d(8, 16, 3, padding=1, probes=8)
        >>> layer(torch.randn(2, 8, 10, 10)).sum().backward()
    """

    def __init__(self, *arguments: Any, probes: int = 8, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.probes = probes
        if probes < 1:
            raise InputError(f"a convolution has at least one probe, not {probes}")
        if self.padding_mode != "zeros" or isinstance(self.padding, str):
            raise InputError("XConv2d has paddings of zeros whose sizes are numbers")

    @classmethod
    def of(cls, layer: nn.Conv2d, probes: int = 8) -> XConv2d:
        """Returns the layer with the parameters of a convolution, which it shares.

        Args:
            layer: A convolution of PyTorch.
            probes: As for the class.

        Raises:
            InputError: As for the class.
        """
        made = cls(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,
            layer.stride,
            layer.padding,
            layer.dilation,
            layer.groups,
            layer.bias is not None,
            layer.padding_mode,
            device="meta",
            probes=probes,
        )
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the convolution.

        Args:
            input: A tensor of samples x channels x height x width.

        Raises:
            InputError: The input has another number of dimensions.
        """
        return _runtime.xconv2d(
            input,
            self.weight,
            self.bias,
            probes=self.probes,
            stride=self.stride,
            padding=self.padding,  # type: ignore[arg-type]
            dilation=self.dilation,
            groups=self.groups,
            seed=None,
        )

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        return f"{super().extra_repr()}, probes={self.probes}"  # type: ignore[no-untyped-call]
