"""BatchNorm whose batch is divided among processes: statistics and gradient are those of the whole batch.

Every process has the same number of rows. In the forward pass, the processes gather the mean and the variance of their
rows; in the backward pass, the four sums that give the gradient of the statistics. Gradients of weight and bias are
those of the process's own rows: the gradients of all parameters are averaged later.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from aggmatch.distributed import Processes
from aggmatch.validate import InvalidValue


class DividedNorm(_BatchNorm):
    """A BatchNorm of any dimension whose batch is divided among processes; `synchronize` turns other ones into it."""

    processes: Processes | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, C, ...), normalised: in training by the statistics of all processes."""
        if self.processes is None or not self.training:
            return super().forward(x)
        return normalize_together(self, x, len(x), self.processes)

    def _check_input_dim(self, x: Tensor) -> None:
        """Any dimension."""


def synchronize(backbone: nn.Module, processes: Processes) -> None:
    """Let all BatchNorm layers of a backbone share their statistics with the same layers of the other processes.

    Raises `InvalidValue` for a layer that is a BatchNorm of another class.
    """
    for layer in backbone.modules():
        if not isinstance(layer, _BatchNorm):
            continue
        if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            layer.__class__ = DividedNorm
        if not hasattr(type(layer), "processes"):
            kind = type(layer).__name__
            raise InvalidValue("train.batchnorm", f"must be local for a backbone with {kind}, which cannot be shared")
        layer.processes = processes  # type: ignore[assignment]


def normalize_together(norm: _BatchNorm, x: Tensor, learned: int, processes: Processes) -> Tensor:
    """Return x (B, C, ...) normalised by the batch of all processes; update the running statistics of `norm`.

    learned: rows with a backward pass, the first ones of x; they represent the others in the gradient of the
    statistics, as in `models.target_only`.
    """
    if learned == len(x) and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
    return DividedStatistics.apply(x, norm.weight, norm.bias, norm, learned, processes)  # type: ignore[no-untyped-call]


class DividedStatistics(torch.autograd.Function):
    """BatchNorm with the statistics of the rows of all processes, and a backward pass for the first rows of each."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, norm: _BatchNorm, learned: int, processes: Processes
    ) -> Tensor:
        """Normalise by the mean and variance of all processes, and update the running statistics."""
        dims = [0, *range(2, x.ndim)]
        wide = x.float() if x.dtype.itemsize < 4 else x
        own_2C = torch.stack(torch.var_mean(wide, dims, correction=0)[::-1])
        mean_WC, variance_WC = processes.gather(own_2C).unbind(1)
        mean_C = mean_WC.mean(0)
        variance_C = (variance_WC + (mean_WC - mean_C).square()).mean(0)
        update_running(norm, mean_C, variance_C, processes.world * x.numel() // x.shape[1])
        inverse_C = torch.rsqrt(variance_C + norm.eps)
        ctx.save_for_backward(x[:learned], weight, mean_C, inverse_C)
        ctx.eps, ctx.processes = norm.eps, processes
        return torch.native_batch_norm(x, weight, bias, mean_C, variance_C, False, 0.0, norm.eps)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, which is 0 for target-only images, and of weight and bias.

        g − constant − linear·x̂ is what remains of g without its projection on 1 and x̂ over all learning rows.
        """
        x, weight, mean_C, inverse_C = ctx.saved_tensors
        dims, shape = [0, *range(2, x.ndim)], [1, -1, *[1] * (x.ndim - 2)]
        gradient = gradients[0][: len(x)].to(mean_C.dtype)
        hat = (x.to(mean_C.dtype) - mean_C.view(shape)) * inverse_C.view(shape)
        own_4C = torch.stack([part.sum(dims) for part in (gradient, gradient * hat, hat, hat.square())])
        rows = ctx.processes.world * x.numel() // x.shape[1]
        g_C, gx_C, x_C, xx_C = ctx.processes.gather(own_4C).sum(0) / rows
        linear_C = (gx_C - x_C * g_C) / ((xx_C - x_C.square()).clamp(min=0) + ctx.eps * inverse_C.square())
        constant_C = g_C - linear_C * x_C
        found = gradient - constant_C.view(shape) - linear_C.view(shape) * hat
        scale_C = inverse_C if weight is None else weight * inverse_C
        padded = torch.zeros_like(gradients[0])
        padded[: len(x)] = found * scale_C.view(shape)
        of_weight, of_bias = (None, None) if weight is None else (own_4C[1], own_4C[0])
        return padded, of_weight, of_bias, None, None, None


def update_running(norm: _BatchNorm, mean_C: Tensor, variance_C: Tensor, rows: int) -> None:
    """Move the running statistics of a norm towards those of a batch. rows: of all processes together."""
    if norm.running_mean is None or norm.running_var is None or norm.num_batches_tracked is None:
        return
    share = 1 / norm.num_batches_tracked if norm.momentum is None else norm.momentum
    norm.running_mean.lerp_(mean_C, share)
    norm.running_var.lerp_(variance_C * (rows / max(rows - 1, 1)), share)
