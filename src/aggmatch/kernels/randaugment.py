"""Views of uint8 images: one launch each for the shift, for a round of RandAugment and for cutout.

The plain PyTorch form sends the whole batch through every family of operations, some sixty small kernels per round.
Here a program handles one image, so its operation is a scalar and the kernel branches on it. Results are whole grey
values and equal those of the plain form: sums and means are in integers, and floats have the same values in both,
because the compiler may not fuse multiplications with additions (`EXACT`).

A program loops over blocks of the flat pixel index, so sides need not be powers of 2. Shapes: N images, C channels (1
or 3), SIDE rows and columns.
"""

import math
from collections.abc import Mapping

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
"""Pixels of a channel in one block: an image of 32 × 32."""
WARPS = 8
"""Warps of a program: a batch of hundreds of images then runs at once, with 4 pixels per thread."""
EXACT = {"enable_fp_fusion": False}
"""Compiler option: round after every operation, as the plain form does."""
RADIANS: tl.constexpr = tl.constexpr(math.pi / 180)
ONE: tl.constexpr = tl.constexpr(1 << 16)
"""1 in 16.16 fixed point."""


@triton.jit
def block_of_pixels(start, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the flat indices of a block of pixels, and which of them exist."""
    pixel = start + tl.arange(0, BLOCK)
    return pixel, pixel < SIDE * SIDE


@triton.jit
def grey_values(image, place, exists):
    """Return the grey values at flat indices of an image, 0 outside of it; int32."""
    return tl.load(image + place, mask=exists, other=0).to(tl.int32)


# Geometric family ------------------------------------------------------------------------------------------------


@triton.jit
def fixed_point(number):
    """Return a number in units of 2^−16, halves rounded up."""
    return tl.floor(number * ONE + 0.5).to(tl.int32)


@triton.jit
def inverse_affine(
    op,
    magnitude,
    ROTATE: tl.constexpr,
    SHEAR_X: tl.constexpr,
    SHEAR_Y: tl.constexpr,
    TRANSLATE_X: tl.constexpr,
    TRANSLATE_Y: tl.constexpr,
    SIDE: tl.constexpr,
):
    """Return the input x of the first output pixel and its increments per column and row; then the same for y.

    Computed in float64, returned in fixed point.
    """
    magnitude = magnitude.to(tl.float64)
    angle = tl.where(op == ROTATE, magnitude, 0.0) * RADIANS
    cos, sin = tl.cos(angle), tl.sin(angle)
    x_row = tl.where(op == SHEAR_X, magnitude, 0.0) - sin
    y_column = tl.where(op == SHEAR_Y, magnitude, 0.0) + sin
    x = tl.where(op == TRANSLATE_X, magnitude, 0.0) * SIDE + (1 - cos + sin) * (SIDE / 2)
    y = tl.where(op == TRANSLATE_Y, magnitude, 0.0) * SIDE + (1 - cos - sin) * (SIDE / 2)
    x, y = fixed_point(x + (cos + x_row) * 0.5), fixed_point(y + (y_column + cos) * 0.5)
    return x, fixed_point(cos), fixed_point(x_row), y, fixed_point(y_column), fixed_point(cos)


@triton.jit
def clamped(index, SIDE: tl.constexpr):
    """Return the nearest row or column that exists."""
    return tl.minimum(tl.maximum(index, 0), SIDE - 1)


@triton.jit
def between(image, x, y, inside, SIDE: tl.constexpr):
    """Return bilinear values between four pixels each, x and y in fixed point; truncated."""
    x -= ONE // 2  # relative to pixel centres
    y -= ONE // 2
    left, right = clamped(x >> 16, SIDE), clamped((x >> 16) + 1, SIDE)
    top, bottom = clamped(y >> 16, SIDE) * SIDE, clamped((y >> 16) + 1, SIDE) * SIDE
    across, along = x & (ONE - 1), y & (ONE - 1)
    upper, lower = grey_values(image, top + left, inside), grey_values(image, bottom + left, inside)
    upper = upper * ONE + across * (grey_values(image, top + right, inside) - upper)
    lower = lower * ONE + across * (grey_values(image, bottom + right, inside) - lower)
    # Exact so far, in units of 2^−32. The plain form rounds once, to float32, before it truncates.
    exact = upper.to(tl.int64) * ONE + along.to(tl.int64) * (lower - upper)
    return (exact.to(tl.float32) * (1 / (ONE * ONE))).to(tl.int32)


@triton.jit
def warp(
    image,
    out,
    x_first,
    x_column,
    x_row,
    y_first,
    y_column,
    y_row,
    BILINEAR: tl.constexpr,
    C: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Sample an image through its inverse affine map; outside of it is black."""
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        row, column = pixel // SIDE, pixel % SIDE
        x, y = x_first + x_column * column + x_row * row, y_first + y_column * column + y_row * row
        inside = exists & (x >= 0) & (x < SIDE * ONE) & (y >= 0) & (y < SIDE * ONE)
        for c in tl.static_range(C):
            channel = image + c * SIDE * SIDE
            if BILINEAR:
                value = between(channel, x, y, inside, SIDE)
            else:
                value = grey_values(channel, (y >> 16) * SIDE + (x >> 16), inside)
            tl.store(out + c * SIDE * SIDE + pixel, value.to(tl.uint8), mask=exists)


# Table family ----------------------------------------------------------------------------------------------------


@triton.jit
def stretch(image, out, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Stretch the contrast of one channel: its darkest value becomes black, its brightest white."""
    lowest = tl.full((BLOCK,), 255, tl.int32)
    highest = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        grey = grey_values(image, pixel, exists)
        lowest = tl.minimum(lowest, tl.where(exists, grey, 255))
        highest = tl.maximum(highest, grey)
    low, high = tl.min(lowest), tl.max(highest)
    # The result is truncated, so only float64, rounded where Python rounds, gives Pillow's values.
    scale = tl.full((), 255, tl.float64) / tl.where(low < high, high - low, 255).to(tl.float64)
    offset = -tl.where(low < high, low, 0).to(tl.float64) * scale
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        value = (grey_values(image, pixel, exists).to(tl.float64) * scale + offset).to(tl.int32)
        tl.store(out + pixel, tl.minimum(tl.maximum(value, 0), 255).to(tl.uint8), mask=exists)


@triton.jit
def equalize(image, out, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Equalize the histogram of one channel, by a table of its 256 grey values."""
    histogram = tl.zeros((256,), tl.int32)
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        histogram += tl.histogram(grey_values(image, pixel, exists), 256, mask=exists)
    value = tl.arange(0, 256)
    darker = tl.cumsum(histogram) - histogram
    brightest = tl.max(tl.where(histogram > 0, value, 0))
    step = tl.sum(tl.where(value == brightest, darker, 0)) // 255
    table = tl.minimum((step // 2 + darker) // tl.maximum(step, 1), 255)
    table = tl.where(step > 0, table, value)
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        grey = tl.gather(table, grey_values(image, pixel, exists), 0)
        tl.store(out + pixel, grey.to(tl.uint8), mask=exists)


@triton.jit
def clear_or_invert(image, out, kept, threshold, C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Mask grey values below the threshold with the bits of `kept`, and invert the others."""
    for start in range(0, C * SIDE * SIDE, BLOCK):
        pixel = start + tl.arange(0, BLOCK)
        exists = pixel < C * SIDE * SIDE
        grey = grey_values(image, pixel, exists)
        value = tl.where(grey < threshold, grey & kept, 255 - grey)
        tl.store(out + pixel, value.to(tl.uint8), mask=exists)


# Blend family ----------------------------------------------------------------------------------------------------


@triton.jit
def store_blend(out, place, grey, degenerate, factor, exists):
    """Write degenerate + factor · (grey − degenerate), clipped and truncated."""
    value = (grey - degenerate).to(tl.float32) * factor + degenerate.to(tl.float32)
    tl.store(out + place, tl.minimum(tl.maximum(value, 0.0), 255.0).to(tl.int32).to(tl.uint8), mask=exists)


@triton.jit
def luminance(image, pixel, exists, C: tl.constexpr, SIDE: tl.constexpr):
    """Return the ITU-R 601 luma with Pillow's 16-bit weights, rounded."""
    grey = grey_values(image, pixel, exists)
    if C == 3:
        green = grey_values(image, SIDE * SIDE + pixel, exists)
        blue = grey_values(image, 2 * SIDE * SIDE + pixel, exists)
        grey = (19595 * grey + 38470 * green + 7471 * blue + 32768) >> 16
    return grey


@triton.jit
def mean_luminance(image, C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Return the mean luminance of an image, halves rounded up."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        total += tl.where(exists, luminance(image, pixel, exists, C, SIDE), 0)
    return (2 * tl.sum(total) + SIDE * SIDE) // (2 * SIDE * SIDE)


@triton.jit
def smooth(image, pixel, grey, exists, SIDE: tl.constexpr):
    """Return the 3 × 3 mean with weight 5 at the centre, rounded; the border is unchanged."""
    row, column = pixel // SIDE, pixel % SIDE
    inner = exists & (row > 0) & (row < SIDE - 1) & (column > 0) & (column < SIDE - 1)
    total = 4 * grey
    for down in tl.static_range(3):
        for right in tl.static_range(3):
            total += grey_values(image, pixel + (down - 1) * SIDE + right - 1, inner)
    return tl.where(inner, (2 * total + 13) // 26, grey)


@triton.jit
def towards_smooth(image, out, factor, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Change the sharpness of one channel."""
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        grey = grey_values(image, pixel, exists)
        store_blend(out, pixel, grey, smooth(image, pixel, grey, exists, SIDE), factor, exists)


@triton.jit
def towards_grey(image, out, factor, mean, own, C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Change brightness, contrast or color: blend with one grey value or, with `own`, each pixel's luminance."""
    for start in range(0, SIDE * SIDE, BLOCK):
        pixel, exists = block_of_pixels(start, SIDE, BLOCK)
        degenerate = tl.where(own, luminance(image, pixel, exists, C, SIDE), mean)
        for c in tl.static_range(C):
            place = c * SIDE * SIDE + pixel
            store_blend(out, place, grey_values(image, place, exists), degenerate, factor, exists)


# One round -------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize_on_alignment=["op_N", "magnitude_N"])  # for batches of any size: compile once
def round_kernel(
    images,
    out,
    op_N,
    magnitude_N,
    AUTO_CONTRAST: tl.constexpr,
    BRIGHTNESS: tl.constexpr,
    COLOR: tl.constexpr,
    CONTRAST: tl.constexpr,
    EQUALIZE: tl.constexpr,
    POSTERIZE: tl.constexpr,
    ROTATE: tl.constexpr,
    SHARPNESS: tl.constexpr,
    SHEAR_X: tl.constexpr,
    SHEAR_Y: tl.constexpr,
    SOLARIZE: tl.constexpr,
    TRANSLATE_X: tl.constexpr,
    TRANSLATE_Y: tl.constexpr,
    BILINEAR: tl.constexpr,
    C: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Apply one operation at one magnitude to one image; an operation without a number here changes nothing."""
    n = tl.program_id(0)
    op, magnitude = tl.load(op_N + n).to(tl.int32), tl.load(magnitude_N + n)
    image, out = images + n.to(tl.int64) * C * SIDE * SIDE, out + n.to(tl.int64) * C * SIDE * SIDE
    translate = (op == TRANSLATE_X) | (op == TRANSLATE_Y)
    if translate | (op == ROTATE) | (op == SHEAR_X) | (op == SHEAR_Y):
        x_first, x_column, x_row, y_first, y_column, y_row = inverse_affine(
            op, magnitude, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, SIDE
        )
        warp(image, out, x_first, x_column, x_row, y_first, y_column, y_row, BILINEAR, C, SIDE, BLOCK)
    elif op == AUTO_CONTRAST:
        for c in range(C):
            stretch(image + c * SIDE * SIDE, out + c * SIDE * SIDE, SIDE, BLOCK)
    elif op == EQUALIZE:
        for c in range(C):
            equalize(image + c * SIDE * SIDE, out + c * SIDE * SIDE, SIDE, BLOCK)
    elif op == SHARPNESS:
        for c in range(C):
            towards_smooth(image + c * SIDE * SIDE, out + c * SIDE * SIDE, magnitude, SIDE, BLOCK)
    elif op == CONTRAST:
        towards_grey(image, out, magnitude, mean_luminance(image, C, SIDE, BLOCK), False, C, SIDE, BLOCK)
    elif (op == BRIGHTNESS) | (op == COLOR):
        towards_grey(image, out, magnitude, 0, op == COLOR, C, SIDE, BLOCK)
    else:
        bits = tl.where(op == POSTERIZE, magnitude, 8.0).to(tl.int32)
        threshold = tl.where(op == SOLARIZE, magnitude, 256.0)
        clear_or_invert(image, out, 255 << (8 - bits), threshold, C, SIDE, BLOCK)


def randaugment_round(
    images: Tensor, op_N: Tensor, magnitude_N: Tensor, numbers: Mapping[str, int], bilinear: bool
) -> Tensor:
    """Apply to each image its operation at its magnitude, like the function of this name in `augment`.

    images: (N, C, H, W), uint8; op_N: integers; magnitude_N: float32; numbers: name of an operation → its number in
    op_N. Returns (N, C, H, W).
    """
    images = images.contiguous()
    out = torch.empty_like(images)
    constants = {name.upper(): number for name, number in numbers.items() if name != "identity"}
    round_kernel[(len(images),)](
        images,
        out,
        op_N.contiguous(),
        magnitude_N.contiguous(),
        **constants,
        BILINEAR=bilinear,
        C=images.shape[1],
        SIDE=images.shape[-1],
        BLOCK=BLOCK,
        num_warps=WARPS,
        **EXACT,
    )
    return out


# Weak view and cutout --------------------------------------------------------------------------------------------


@triton.jit
def reflected(index, SIDE: tl.constexpr):
    """Reflect rows or columns that are less than a side outside of the image back into it."""
    return SIDE - 1 - tl.abs(SIDE - 1 - tl.abs(index))


@triton.jit
def shift_kernel(images, out, down_N, right_N, mirrored_N, C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Shift a block of pixels of one image, and mirror it if its flag is set."""
    n = tl.program_id(0)
    image = n.to(tl.int64) * C * SIDE * SIDE
    pixel, exists = block_of_pixels(tl.program_id(1) * BLOCK, SIDE, BLOCK)
    row, column = pixel // SIDE, pixel % SIDE
    column = tl.where(tl.load(mirrored_N + n) != 0, SIDE - 1 - column, column)
    row = reflected(row - tl.load(down_N + n).to(tl.int32), SIDE)
    column = reflected(column - tl.load(right_N + n).to(tl.int32), SIDE)
    for c in tl.static_range(C):
        channel = image + c * SIDE * SIDE
        grey = tl.load(images + channel + row * SIDE + column, mask=exists)
        tl.store(out + channel + pixel, grey, mask=exists)


@triton.jit
def cut_kernel(
    images, out, top_N, left_N, side_N, GREY: tl.constexpr, C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr
):
    """Copy a block of pixels of one image, grey within the square."""
    n = tl.program_id(0)
    image = n.to(tl.int64) * C * SIDE * SIDE
    pixel, exists = block_of_pixels(tl.program_id(1) * BLOCK, SIDE, BLOCK)
    down = pixel // SIDE - tl.load(top_N + n).to(tl.int32)
    right = pixel % SIDE - tl.load(left_N + n).to(tl.int32)
    side = tl.load(side_N + n).to(tl.int32)
    within = (down >= 0) & (down < side) & (right >= 0) & (right < side)
    for c in tl.static_range(C):
        place = image + c * SIDE * SIDE + pixel
        grey = tl.load(images + place, mask=exists)
        tl.store(out + place, tl.where(within, GREY, grey).to(tl.uint8), mask=exists)


def shift_and_mirror(images: Tensor, down_N: Tensor, right_N: Tensor, mirrored_N: Tensor) -> Tensor:
    """Shift each image by less than its side, with reflection at the border, then mirror some left to right.

    images: (N, C, H, W), uint8; down_N, right_N: integers; mirrored_N: bool. Returns (N, C, H, W).
    """
    images = images.contiguous()
    out = torch.empty_like(images)
    grid, constants = pixel_blocks(images)
    shift_kernel[grid](
        images, out, down_N.contiguous(), right_N.contiguous(), mirrored_N.contiguous().view(torch.uint8), **constants
    )
    return out


def cut_out(images: Tensor, top_N: Tensor, left_N: Tensor, side_N: Tensor, grey: int) -> Tensor:
    """Paint a grey square into each image; top, left and side: whole numbers of any type. Returns (N, C, H, W)."""
    images = images.contiguous()
    out = torch.empty_like(images)
    grid, constants = pixel_blocks(images)
    cut_kernel[grid](images, out, top_N.contiguous(), left_N.contiguous(), side_N.contiguous(), GREY=grey, **constants)
    return out


def pixel_blocks(images: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    """Return the grid, one program per block of pixels of each image, and the constants of a launch."""
    count, channels, _, side = images.shape
    return (count, triton.cdiv(side * side, BLOCK)), {"C": channels, "SIDE": side, "BLOCK": BLOCK}
