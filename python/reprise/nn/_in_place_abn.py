"""A batch norm and its activation that keep their result alone: InPlace-ABN."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._torch import _runtime
from ..errors import InputError

AbnActivation = Literal["leaky_relu", "elu", "identity"]
_PARAMETERS = {"leaky_relu": 0.01, "elu": 1.0, "identity": 1.0}


class InPlaceABN(nn.modules.batchnorm._BatchNorm):
    """A batch norm over dimension 1 and its activation, which keep their result for the backward.

    The backward pass inverts the activation and the batch norm (Rota Bulo et al.,
    arXiv 1712.02616), so that the input is not kept. Results and statistics have the bits of
    PyTorch's batch norm and activation, and gradients are equal up to rounding. Parameters and
    buffers are those of `nn.BatchNorm2d`: weights of any sign can be loaded.

    Args:
        num_features: The size of dimension 1.
        eps: As for `nn.BatchNorm2d`.
        momentum: As for `nn.BatchNorm2d`.
        affine: As for `nn.BatchNorm2d`.
        track_running_stats: As for `nn.BatchNorm2d`.
        activation: "leaky_relu", "elu" or "identity".
        parameter: The slope of leaky ReLU (0.01 by default), or the alpha of ELU (1). It is above
            0, because the activation must have an inverse.
        guard: By how much rounding errors of the result may grow when it is inverted. The input is
            kept for channels where they would grow more: those whose bias is `guard` times their
            weight, or whose weight is 0. The default is 1,000, and 8 for 16-bit numbers.
        device: Where parameters and buffers lie.
        dtype: Their type.

    Raises:
        InputError: `activation`, `parameter` or `guard` is wrong.

    Examples:
        >>> layer = nn.Sequential(nn.Conv2d(3, 8, 3), reprise.nn.InPlaceABN(8))
        >>> layer(torch.randn(2, 3, 8, 8)).sum().backward()
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        activation: AbnActivation = "leaky_relu",
        parameter: float | None = None,
        guard: float | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        if activation not in _PARAMETERS:
            raise InputError(
                f"activation is 'leaky_relu', 'elu' or 'identity', not {activation!r}: others have "
                "no inverse"
            )
        self.activation = activation
        self.parameter = _PARAMETERS[activation] if parameter is None else parameter
        self.guard = guard
        if not self.parameter > 0:
            raise InputError(f"parameter is above 0, not {self.parameter}")
        if guard is not None and not guard > 0:
            raise InputError(f"guard is above 0, not {guard}")

    @classmethod
    def of(
        cls,
        norm: nn.modules.batchnorm._BatchNorm,
        activation: AbnActivation = "leaky_relu",
        parameter: float | None = None,
    ) -> InPlaceABN:
        """Returns the layer with the parameters and buffers of a batch norm, which it shares.

        Args:
            norm: A batch norm of PyTorch.
            activation: The activation that follows it.
            parameter: As for the class.

        Raises:
            InputError: `activation` or `parameter` is wrong.
        """
        made = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            norm.affine,
            norm.track_running_stats,
            activation=activation,
            parameter=parameter,
            device="meta",
        )
        made.weight, made.bias = norm.weight, norm.bias
        for name, buffer in norm.named_buffers():
            made._buffers[name] = buffer
        return made.train(norm.training)

    def _check_input_dim(self, x: Tensor) -> None:
        if x.dim() < 2 or x.shape[1] != self.num_features:
            raise InputError(
                f"the input has the shape {tuple(x.shape)}, and dimension 1 is to be "
                f"{self.num_features}"
            )

    def forward(self, input: Tensor) -> Tensor:
        """Returns the activation of the normalised input.

        Args:
            input: A tensor of at least two dimensions.

        Raises:
            InputError: The input has another size, or is no dense tensor of real numbers.
        """
        self._check_input_dim(input)
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                momentum = 1.0 / float(self.num_batches_tracked)
        of_batch = self.training or self.running_mean is None
        tracked = not self.training or self.track_running_stats
        return _runtime.in_place_abn(
            input,
            self.weight,
            self.bias,
            self.running_mean if tracked else None,
            self.running_var if tracked else None,
            of_batch,
            activation=self.activation,
            parameter=self.parameter,
            eps=self.eps,
            momentum=momentum,
            guard=self.guard or 0.0,
        )

    def extra_repr(self) -> str:
        """Returns the options, for printing."""
        said = f"{super().extra_repr()}, activation={self.activation!r}"  # type: ignore[no-untyped-call]
        return said if self.activation == "identity" else f"{said}, parameter={self.parameter}"
