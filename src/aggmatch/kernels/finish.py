"""From sums over the rows of a batch to what BatchNorm needs of it: moments forward, a projection backward.

A few programs sum parts of the rows (`kernels.norm`, `kernels.convolve`); here the parts are added up. If the batch is
divided among processes, each reduces its parts to a few rows, gathers those of all, and combines them: the result is
that of the whole batch. All processes have equally many rows.

Suffixes: C channels, P programs that each summed a part of the rows, W processes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from aggmatch.distributed import Processes

PROGRAMS = 512
"""Programs that share the rows of the two forward sums, at most: a few for each multiprocessor."""


class Moments(NamedTuple):
    """Mean and deviation of a batch, and the affine map y = scale·x + shift that normalises by them; each (C,)."""

    mean: Tensor
    inverse_deviation: Tensor
    scale: Tensor
    shift: Tensor


@triton.jit
def sum_parts(part, which, channel, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Return the sum of one part over the programs, for some channels; part: (parts, P, C)."""
    total = tl.zeros((PARTS, BLOCK), tl.float32)
    for start in range(0, P, PARTS):
        p = start + tl.arange(0, PARTS)
        total += tl.load(part + (which * P + p[:, None]) * C + channel, mask=(p < P)[:, None], other=0.0)
    return tl.sum(total, 0)


@triton.jit
def own_moments(part_2P1C, channel, R, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Return mean and variance of the rows from their parts, for some channels."""
    pivot = tl.load(part_2P1C + 2 * P * C + channel)
    offset = sum_parts(part_2P1C, 0, channel, P, C, BLOCK, PARTS) / R
    variance = sum_parts(part_2P1C, 1, channel, P, C, BLOCK, PARTS) / R - offset * offset
    return pivot + offset, tl.maximum(variance, 0.0)


@triton.jit
def store_moments(
    channel,
    mean,
    variance,
    weight,
    bias,
    running_mean,
    running_variance,
    mean_C,
    inverse_C,
    scale_C,
    shift_C,
    R,
    momentum,
    epsilon,
):
    """Store the moments of R rows and their affine map, and move the running statistics."""
    inverse = 1 / tl.sqrt(variance + epsilon)
    scale = tl.load(weight + channel) * inverse
    tl.store(mean_C + channel, mean)
    tl.store(inverse_C + channel, inverse)
    tl.store(scale_C + channel, scale)
    tl.store(shift_C + channel, tl.load(bias + channel) - mean * scale)
    old_mean, old_variance = tl.load(running_mean + channel), tl.load(running_variance + channel)
    unbiased = variance * (R / tl.maximum(R - 1, 1).to(tl.float32))
    tl.store(running_mean + channel, old_mean + momentum * (mean - old_mean))
    tl.store(running_variance + channel, old_variance + momentum * (unbiased - old_variance))


@triton.jit
def finish_moments_kernel(
    part_2P1C,
    weight,
    bias,
    running_mean,
    running_variance,
    mean_C,
    inverse_C,
    scale_C,
    shift_C,
    R,
    momentum,
    epsilon,
    P: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute the moments of the batch from the parts, their affine map, and the running statistics."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mean, variance = own_moments(part_2P1C, channel, R, P, C, BLOCK, PARTS)
    store_moments(
        channel,
        mean,
        variance,
        weight,
        bias,
        running_mean,
        running_variance,
        mean_C,
        inverse_C,
        scale_C,
        shift_C,
        R,
        momentum,
        epsilon,
    )


@triton.jit
def own_moments_kernel(
    part_2P1C, own_2C, R, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr
):
    """Compute mean and variance of the rows of this process from their parts."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mean, variance = own_moments(part_2P1C, channel, R, P, C, BLOCK, PARTS)
    tl.store(own_2C + channel, mean)
    tl.store(own_2C + C + channel, variance)


@triton.jit
def combine_moments_kernel(
    own_W2C,
    weight,
    bias,
    running_mean,
    running_variance,
    mean_C,
    inverse_C,
    scale_C,
    shift_C,
    R,
    momentum,
    epsilon,
    W: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute what `finish_moments_kernel` does from the moments of all processes, R rows in all."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mean = tl.zeros((BLOCK,), tl.float32)
    for process in range(W):
        mean += tl.load(own_W2C + 2 * process * C + channel)
    mean = mean / W
    variance = tl.zeros((BLOCK,), tl.float32)
    for process in range(W):
        apart = tl.load(own_W2C + 2 * process * C + channel) - mean
        variance += tl.load(own_W2C + (2 * process + 1) * C + channel) + apart * apart
    variance = variance / W
    store_moments(
        channel,
        mean,
        variance,
        weight,
        bias,
        running_mean,
        running_variance,
        mean_C,
        inverse_C,
        scale_C,
        shift_C,
        R,
        momentum,
        epsilon,
    )


@triton.jit
def store_projection(channel, g, gx, x, xx, inverse_C, constant_C, linear_C, R, epsilon):
    """Store the projection of g on 1 and x̂, g ≈ constant + linear·x̂, from Σg, Σg·x̂, Σx̂ and Σx̂² over R rows."""
    mean, square = x / R, xx / R
    inverse = tl.load(inverse_C + channel)
    variance = tl.maximum(square - mean * mean, 0.0) + epsilon * inverse * inverse
    linear = (gx / R - mean * g / R) / variance
    tl.store(constant_C + channel, g / R - linear * mean)
    tl.store(linear_C + channel, linear)


@triton.jit
def finish_sums_kernel(
    part_4PC,
    inverse_C,
    bias_C,
    weight_C,
    constant_C,
    linear_C,
    R,
    epsilon,
    P: tl.constexpr,
    C: tl.constexpr,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Compute gradients of bias and weight, and the projection of g on 1 and x̂."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = sum_parts(part_4PC, 0, channel, P, C, BLOCK, PARTS)
    gx = sum_parts(part_4PC, 1, channel, P, C, BLOCK, PARTS)
    x = sum_parts(part_4PC, 2, channel, P, C, BLOCK, PARTS)
    xx = sum_parts(part_4PC, 3, channel, P, C, BLOCK, PARTS)
    tl.store(bias_C + channel, g)
    tl.store(weight_C + channel, gx)
    store_projection(channel, g, gx, x, xx, inverse_C, constant_C, linear_C, R, epsilon)


@triton.jit
def own_sums_kernel(part_4PC, own_4C, P: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr):
    """Compute the four sums over the rows of this process from their parts."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for which in tl.static_range(4):
        tl.store(own_4C + which * C + channel, sum_parts(part_4PC, which, channel, P, C, BLOCK, PARTS))


@triton.jit
def combine_sums_kernel(
    own_W4C, inverse_C, constant_C, linear_C, R, epsilon, W: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute the projection of g on 1 and x̂ from the sums of all processes, R rows in all."""
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.zeros((BLOCK,), tl.float32)
    gx = tl.zeros((BLOCK,), tl.float32)
    x = tl.zeros((BLOCK,), tl.float32)
    xx = tl.zeros((BLOCK,), tl.float32)
    for process in range(W):
        own = own_W4C + 4 * process * C + channel
        g += tl.load(own)
        gx += tl.load(own + C)
        x += tl.load(own + 2 * C)
        xx += tl.load(own + 3 * C)
    store_projection(channel, g, gx, x, xx, inverse_C, constant_C, linear_C, R, epsilon)


def finish_moments(part_2P1C: Tensor, rows: int, norm: torch.nn.BatchNorm2d) -> Moments:
    """Return the moments of the given number of rows from partial sums; update the running statistics of `norm`.

    part_2P1C: Σ(v − v₀) of each of P programs, then Σ(v − v₀)² of each, then v₀. If processes share the batch of the
    norm, the moments are those of all their rows.
    """
    parts, channels = part_2P1C.shape
    moments = Moments(*torch.empty(4, channels, device=part_2P1C.device))
    shape, grid = finish_shape(parts // 2, channels)
    state = norm.weight, norm.bias, norm.running_mean, norm.running_var
    if (processes := sharing(norm)) is None:
        finish_moments_kernel[grid](part_2P1C, *state, *moments, rows, norm.momentum, norm.eps, **shape)
        return moments
    own_2C = torch.empty(2, channels, device=part_2P1C.device)
    own_moments_kernel[grid](part_2P1C, own_2C, rows, **shape)
    own_W2C, total = processes.gather(own_2C), rows * processes.world
    combine_moments_kernel[grid](
        own_W2C, *state, *moments, total, norm.momentum, norm.eps, **combine_shape(processes, shape)
    )
    return moments


def finish_sums(
    part_4PC: Tensor, moments: Moments, rows: int, norm: torch.nn.BatchNorm2d
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of bias and weight, and constant and linear part of the projection of g; each (C,).

    part_4PC: Σg, Σg·x̂, Σx̂, Σx̂² of each of P programs over the given number of rows. If processes share the batch of
    the norm, the projection is that of all their rows; the gradients are always of the own rows.
    """
    _, parts, channels = part_4PC.shape
    bias, weight, constant, linear = found = torch.empty(4, channels, device=part_4PC.device)
    shape, grid = finish_shape(parts, channels)
    if (processes := sharing(norm)) is None:
        finish_sums_kernel[grid](part_4PC, moments.inverse_deviation, *found, rows, norm.eps, **shape)
        return bias, weight, constant, linear
    own_4C = torch.empty_like(found)
    own_sums_kernel[grid](part_4PC, own_4C, **shape)
    own_W4C, total = processes.gather(own_4C), rows * processes.world
    combine_sums_kernel[grid](
        own_W4C, moments.inverse_deviation, constant, linear, total, norm.eps, **combine_shape(processes, shape)
    )
    return own_4C[0], own_4C[1], constant, linear


def sharing(norm: torch.nn.BatchNorm2d) -> Processes | None:
    """Return the processes that share the statistics of a norm; None if it has its own."""
    processes: Processes | None = getattr(norm, "processes", None)
    return processes


def finish_shape(parts: int, channels: int) -> tuple[dict[str, int], tuple[int]]:
    """Return the constants of a launch that sums the parts, and its grid."""
    block = min(channels, 8)
    shape = {"P": parts, "C": channels, "BLOCK": block, "PARTS": min(PROGRAMS, triton.next_power_of_2(parts))}
    return {**shape, "num_warps": 8}, (channels // block,)


def combine_shape(processes: Processes, shape: dict[str, int]) -> dict[str, int]:
    """Return the constants of a launch that combines the processes, from those of one that sums the parts."""
    return {"W": processes.world, "C": shape["C"], "BLOCK": shape["BLOCK"], "num_warps": 1}
