"""Layers for a batch whose last images are target-only: the network predicts them but does not learn from them.

BatchNorm's statistics come from all images. Target-only images have no backward pass, so in the gradient the other
images, which learn, represent all: the same weights act on both, and the statistics are assumed to change as those of
the learning images do. Like the exact gradient, this gradient has no part along the shift and the scale of the input
of the norm, which the norm removes. To treat the contribution of target-only images to the statistics as a constant
would not be a descent direction: that gradient acts as if shift and scale could change
(docs/decisions/0004-images-that-only-give-targets.md).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from aggmatch.distributed import Processes
from aggmatch.models.shared_norm import normalize_together

SLOPE = 0.1
"""Slope of the leaky ReLU for negative values."""


def leaky_relu(x: Tensor) -> Tensor:
    """Return x where it is positive, 0.1·x elsewhere."""
    return F.leaky_relu(x, SLOPE)


def convolve(layer: nn.Conv2d, x: Tensor, targets: int) -> Tensor:
    """Return the layer's output, without a backward pass for the last `targets` images."""
    if not targets:
        return layer(x)
    with torch.no_grad():
        constant = layer(x[-targets:])
    return torch.cat([layer(with_rows(x, -targets)), constant])


def with_rows(x: Tensor, rows: int) -> Tensor:
    """Return x (N, C, H, W) with further images of zeros, or without its last images if `rows` is negative.

    Unlike those of a slice, values and gradients keep the memory format; a mixture makes a step on a CPU slower.
    """
    return F.pad(x, (0,) * 7 + (rows,))


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm over all images of a batch, whose last images may be target-only."""

    processes: Processes | None = None
    """The processes among which a batch is divided and which share its statistics; None if they do not."""

    def forward(self, x: Tensor, targets: int = 0) -> Tensor:
        """Return x (N, C, H, W), normalised; the last `targets` images get no gradient."""
        if self.processes is not None and self.training:
            return normalize_together(self, x, len(x) - targets, self.processes)
        if not (targets and self.training and torch.is_grad_enabled()):
            return super().forward(x)
        y: Tensor = SharedStatistics.apply(x, self.weight, self.bias, self, len(x) - targets)  # type: ignore[no-untyped-call]
        return y


class SharedStatistics(torch.autograd.Function):
    """BatchNorm with the statistics of all images and a backward pass for the first `learned` images only.

    The gradient of its input is the incoming gradient minus its projection on 1 and x over those images, as in plain
    BatchNorm. So it uses the plain formula with the statistics of those images, and the scale of the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: BatchNorm, learned: int) -> Tensor:
        """Normalise by the statistics of the batch, and update the running statistics."""
        y, mean, inverse = torch.native_batch_norm(
            x, weight, bias, norm.running_mean, norm.running_var, True, norm.momentum or 0.0, norm.eps
        )
        ctx.save_for_backward(x[:learned], weight, mean, inverse)
        ctx.eps, ctx.learned, ctx.batch = norm.eps, learned, len(x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, which is 0 for target-only images, and of weight and bias."""
        x, weight, mean, inverse = ctx.saved_tensors
        gradient = gradients[0][: ctx.learned]
        # Only the statistics of these images are needed, but on a CPU this is five times as fast as `var_mean`.
        _, own_mean, own_inverse = torch.native_batch_norm(x, weight, None, None, None, True, 0.0, ctx.eps)
        ratio = inverse / own_inverse
        found, along, bias_found = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight * ratio, None, None, own_mean, own_inverse, True, ctx.eps, [True, True, True]
        )
        weight_found = ratio * along + inverse * (own_mean - mean) * bias_found
        return with_rows(found, ctx.batch - ctx.learned), weight_found, bias_found, None, None
