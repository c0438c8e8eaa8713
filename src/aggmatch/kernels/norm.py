"""BatchNorm with leaky ReLU for training, in as few passes over the activations as possible.

A wide residual network spends as much time on normalisation as on convolution, because both are bound by memory.
Forward, one pass measures the moments (and adds the residual) and one normalises and activates. Backward, one pass sums
and one writes the gradient (and adds that of the shortcut). Sums are in float32 and in a fixed order. Every other pass
goes through the rows from the end, which the previous pass left in the cache. Values that are not read again soon are
evicted first.

Tensors are (N, C, H, W) with channels last, so a row of memory holds the C channels of a pixel. Suffixes: R rows, C
channels, P programs that each sum a part of the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aggmatch.kernels.finish import PROGRAMS, Moments, finish_moments, finish_sums

TILE = 4096
"""Values in the tile of a program."""
FOLD = 4
"""Rows of a tile in one thread: 4,096 values are 4 rows of 8 channels for each of 128 threads."""
STAGES = 3
"""Tiles in flight in a program of the backward sums."""
GRADIENT_PROGRAMS = 264
"""Programs that share the rows of the four backward sums, which need more registers than the two forward ones."""


@triton.jit
def tile(index, R, C: tl.constexpr, ROWS: tl.constexpr):
    """Return the offsets of a tile's values and whether they exist, (ROWS, C), and the channels."""
    row = index.to(tl.int64) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, C)
    exists = (row < R)[:, None] & (channel >= 0)  # always true; gives the shape
    return row[:, None] * C + channel, exists, channel


@triton.jit
def fold(values, C: tl.constexpr, ROWS: tl.constexpr, FOLD: tl.constexpr):
    """Sum the rows of a tile within each thread: fewer registers for sums leave more for loads."""
    return tl.sum(tl.reshape(values, (FOLD, ROWS // FOLD, C)), 0)


@triton.jit
def moments_kernel(
    x,
    residual,
    total,
    part_2P1C,
    R,
    TURNS: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    FOLD: tl.constexpr,
    ADD: tl.constexpr,
):
    """Compute Σ(v − v₀) and Σ(v − v₀)² of each channel over some tiles, v = x (+ residual, written to `total`).

    v₀ is the first row, and is stored too: sums of squares about a typical value do not cancel, those about 0 can.
    """
    program, programs = tl.program_id(0), tl.num_programs(0)
    channel = tl.arange(0, C)
    pivot = tl.load(x + channel).to(tl.float32)
    if ADD:  # rounded like the stored sum
        pivot = (pivot + tl.load(residual + channel).to(tl.float32)).to(x.dtype.element_ty).to(tl.float32)
    first = tl.zeros((ROWS // FOLD, C), tl.float32)
    second = tl.zeros((ROWS // FOLD, C), tl.float32)
    for turn in range(TURNS):
        place, exists, _ = tile(turn * programs + program, R, C, ROWS)
        value = tl.load(x + place, mask=exists, other=0.0).to(tl.float32)
        if ADD:
            value += tl.load(residual + place, mask=exists, other=0.0).to(tl.float32)
            rounded = value.to(x.dtype.element_ty)
            tl.store(total + place, rounded, mask=exists)
            value = rounded.to(tl.float32)
        difference = tl.where(exists, value - pivot[None, :], 0.0)
        first += fold(difference, C, ROWS, FOLD)
        second += fold(difference * difference, C, ROWS, FOLD)
    tl.store(part_2P1C + program * C + channel, tl.sum(first, 0))
    tl.store(part_2P1C + (programs + program) * C + channel, tl.sum(second, 0))
    tl.store(part_2P1C + 2 * programs * C + channel, pivot)


@triton.jit
def normalize_kernel(x, scale_C, shift_C, y, R, slope, C: tl.constexpr, ROWS: tl.constexpr):
    """Compute y = leaky(scale·x + shift), from the last tile backwards."""
    place, exists, channel = tile(tl.num_programs(0) - 1 - tl.program_id(0), R, C, ROWS)
    value = tl.load(x + place, mask=exists, other=0.0, eviction_policy="evict_first").to(tl.float32)
    value = value * tl.load(scale_C + channel)[None, :] + tl.load(shift_C + channel)[None, :]
    tl.store(y + place, tl.where(value > 0, value, slope * value).to(y.dtype.element_ty), mask=exists)


@triton.jit
def through_activation(gradient, value, scale, shift, slope):
    """Return the gradient before the activation, given that after it and the value before normalisation."""
    return tl.where(value * scale[None, :] + shift[None, :] > 0, gradient, slope * gradient)


@triton.jit
def gradient_sums_kernel(
    gradient,
    x,
    mean_C,
    inverse_C,
    scale_C,
    shift_C,
    part_4PC,
    R,
    slope,
    TURNS: tl.constexpr,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    FOLD: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute Σg, Σg·x̂, Σx̂, Σx̂² of each channel over some tiles, from the last; g: gradient before activation."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    channel = tl.arange(0, C)
    mean, inverse = tl.load(mean_C + channel), tl.load(inverse_C + channel)
    scale, shift = tl.load(scale_C + channel), tl.load(shift_C + channel)
    g_sum = tl.zeros((ROWS // FOLD, C), tl.float32)
    gx_sum = tl.zeros((ROWS // FOLD, C), tl.float32)
    x_sum = tl.zeros((ROWS // FOLD, C), tl.float32)
    xx_sum = tl.zeros((ROWS // FOLD, C), tl.float32)
    for turn in tl.range(TURNS, num_stages=STAGES):
        place, exists, _ = tile((TURNS - turn) * programs - 1 - program, R, C, ROWS)
        value = tl.load(x + place, mask=exists, other=0.0).to(tl.float32)
        g = tl.load(gradient + place, mask=exists, other=0.0).to(tl.float32)
        g = through_activation(g, value, scale, shift, slope)
        centred = tl.where(exists, value - mean[None, :], 0.0)
        g_sum += fold(g, C, ROWS, FOLD)
        gx_sum += fold(g * centred, C, ROWS, FOLD)
        x_sum += fold(centred, C, ROWS, FOLD)
        xx_sum += fold(centred * centred, C, ROWS, FOLD)
    part = part_4PC + program * C + channel
    tl.store(part, tl.sum(g_sum, 0))
    tl.store(part + programs * C, tl.sum(gx_sum, 0) * inverse)
    tl.store(part + 2 * programs * C, tl.sum(x_sum, 0) * inverse)
    tl.store(part + 3 * programs * C, tl.sum(xx_sum, 0) * inverse * inverse)


@triton.jit
def input_gradient_kernel(
    gradient,
    x,
    shortcut,
    mean_C,
    inverse_C,
    scale_C,
    shift_C,
    constant_C,
    linear_C,
    out,
    R,
    slope,
    C: tl.constexpr,
    ROWS: tl.constexpr,
    ADD: tl.constexpr,
):
    """Compute scale·(g − constant − linear·x̂) (+ the gradient of the shortcut)."""
    place, exists, channel = tile(tl.program_id(0), R, C, ROWS)
    mean, inverse = tl.load(mean_C + channel), tl.load(inverse_C + channel)
    scale, shift = tl.load(scale_C + channel), tl.load(shift_C + channel)
    constant, linear = tl.load(constant_C + channel), tl.load(linear_C + channel) * inverse
    value = tl.load(x + place, mask=exists, other=0.0, eviction_policy="evict_first").to(tl.float32)
    g = tl.load(gradient + place, mask=exists, other=0.0, eviction_policy="evict_first").to(tl.float32)
    g = through_activation(g, value, scale, shift, slope)
    result = scale[None, :] * (g - constant[None, :] - (value - mean[None, :]) * linear[None, :])
    if ADD:
        result += tl.load(shortcut + place, mask=exists, other=0.0).to(tl.float32)
    tl.store(out + place, result.to(out.dtype.element_ty), mask=exists)


def measure(x: Tensor, residual: Tensor | None, norm: torch.nn.BatchNorm2d) -> tuple[Tensor, Moments]:
    """Return x + residual (or x) and its moments by channel; update the running statistics of `norm`.

    x, residual: (N, C, H, W), channels last, C a power of 2.
    """
    rows, channels, tiles, launch = layout(x, x if residual is None else residual)
    total = x if residual is None else torch.empty_like(x)
    other = x if residual is None else residual
    programs = min(PROGRAMS, tiles)
    part_2P1C = torch.empty(2 * programs + 1, channels, device=x.device)
    add = residual is not None
    turns, fold = triton.cdiv(tiles, programs), min(FOLD, launch["ROWS"])
    moments_kernel[(programs,)](x, other, total, part_2P1C, rows, turns, FOLD=fold, ADD=add, **launch)
    return total, finish_moments(part_2P1C, rows, norm)


def normalize(x: Tensor, moments: Moments, slope: float) -> Tensor:
    """Return leaky(scale·x + shift), in the type and layout of x."""
    rows, _, tiles, launch = layout(x)
    y = torch.empty_like(x)
    normalize_kernel[(tiles,)](x, moments.scale, moments.shift, y, rows, slope, **launch)
    return y


def normalize_backward(
    gradient: Tensor,
    x: Tensor,
    moments: Moments,
    norm: torch.nn.BatchNorm2d,
    slope: float,
    shortcut: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x (+ that of the shortcut), weight and bias, given that of `normalize(x, ...)`.

    gradient, x: of the images that learn. The moments may be of more images (`models.target_only`).
    """
    rows, channels, tiles, launch = layout(x, gradient, x if shortcut is None else shortcut)
    programs = min(GRADIENT_PROGRAMS, tiles)
    part_4PC = torch.empty(4, programs, channels, device=x.device)
    turns, fold = triton.cdiv(tiles, programs), min(FOLD, launch["ROWS"])
    gradient_sums_kernel[(programs,)](
        gradient, x, *moments, part_4PC, rows, slope, turns, FOLD=fold, STAGES=STAGES, **launch
    )
    bias, weight, constant, linear = finish_sums(part_4PC, moments, rows, norm)
    out = torch.empty_like(x)
    other = x if shortcut is None else shortcut
    add = shortcut is not None
    input_gradient_kernel[(tiles,)](gradient, x, other, *moments, constant, linear, out, rows, slope, ADD=add, **launch)
    return out, weight, bias


def layout(x: Tensor, *others: Tensor) -> tuple[int, int, int, dict[str, int]]:
    """Return rows, channels and tiles of a batch, and the constants of a launch; checks the layout of all tensors."""
    check_layout(x, *others)
    images, channels, height, width = x.shape
    rows, rows_of_tile = images * height * width, max(1, TILE // channels)
    return rows, channels, triton.cdiv(rows, rows_of_tile), {"C": channels, "ROWS": rows_of_tile}


def check_layout(*tensors: Tensor) -> None:
    """Fail for tensors whose layout would make the kernels read wrong values."""
    for tensor in tensors:
        assert tensor.is_contiguous(memory_format=torch.channels_last), "tensors must be channels last"
