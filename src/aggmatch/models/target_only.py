"""Layers for a batch of which the last images take part without learning: only their targets are wanted.

All images together make BatchNorm's statistics. In the gradient, those that learn stand for all of them: images that
do not learn have no backward pass, but the weights that move their activations are the same, so the statistics are
taken to move as those of the learning images do. Like the exact gradient, that of the learning images then has no part
along the shift and the scale of what is normalised, which the norm takes away again. Taking the share of the others in
the statistics as a constant instead is no descent direction: the gradient then believes that it can change both
(docs/decisions/0004-images-that-only-give-targets.md).
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SLOPE = 0.1
"""Of the leaky ReLU."""


def leaky_relu(x: Tensor) -> Tensor:
    """x where positive, 0.1·x elsewhere."""
    return F.leaky_relu(x, SLOPE)


def convolve(layer: nn.Conv2d, x: Tensor, targets: int) -> Tensor:
    """The layer's output; no backward pass is spent on the last `targets` images."""
    if not targets:
        return layer(x)
    with torch.no_grad():
        still = layer(x[-targets:])
    return torch.cat([layer(x[:-targets]), still])


class BatchNorm(nn.BatchNorm2d):
    """BatchNorm over all images of a batch, of which the last ones may pass no gradient on."""

    def forward(self, x: Tensor, targets: int = 0) -> Tensor:
        """(N, C, H, W) → (N, C, H, W); the last `targets` images get no gradient."""
        if not (targets and self.training and torch.is_grad_enabled()):
            return super().forward(x)
        running = self.running_mean, self.running_var
        shared: Tensor = SharedStatistics.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.bias, *running, self.momentum, self.eps, len(x) - targets
        )
        return shared


class SharedStatistics(torch.autograd.Function):
    """BatchNorm with the statistics of all images, whose backward pass sees the first `learned` alone.

    What it passes on is the gradient less its projection on 1 and x over those images, as in plain BatchNorm: hence the
    plain formula, with their own statistics. Only the scale of the result is that of the forward pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        running_mean: Tensor,
        running_var: Tensor,
        momentum: float,
        eps: float,
        learned: int,
    ) -> Tensor:
        """Normalises with the statistics of the batch, and moves the running ones."""
        y, mean, inverse = torch.native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
        ctx.save_for_backward(x[:learned], weight, mean, inverse)
        ctx.eps, ctx.learned, ctx.batch = eps, learned, len(x)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of x, 0 for the images that do not learn, and of weight and bias."""
        x, weight, mean, inverse = ctx.saved_tensors
        gradient = gradients[0][: ctx.learned]
        variance, own_mean = torch.var_mean(x.to(mean.dtype), (0, 2, 3), correction=0)
        own_inverse = torch.rsqrt(variance + ctx.eps)
        wider = inverse / own_inverse
        found, along, bias_found = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight * wider, None, None, own_mean, own_inverse, True, ctx.eps, [True, True, True]
        )
        weight_found = wider * along + inverse * (own_mean - mean) * bias_found
        padded = gradient.new_zeros(ctx.batch, *x.shape[1:])
        padded[: ctx.learned] = found
        return padded, weight_found, bias_found, None, None, None, None, None
