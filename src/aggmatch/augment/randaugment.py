"""The operations of RandAugment, on batches in which every image has its own operation and magnitude.

There are three families of operations. One round applies each family once: on a CPU to its own images, elsewhere to the
whole batch, with neutral parameters for the others, because shapes may not depend on values there:

- geometric: one inverse affine matrix per image, one gather;
- table: one lookup table per image and channel, one gather;
- blend: out = degenerate + factor · (image − degenerate), with one degenerate image and one factor per image.

Pixels equal those of Pillow's operators. On a CUDA device with Triton, one kernel computes the whole round; the
functions here are its reference.

Shapes: N images, C channels (1 or 3), H rows, W columns (H = W, the side), V = 256 grey values.
"""

from collections.abc import Collection
from functools import cache
from importlib import import_module
from types import ModuleType

import torch
from torch import Tensor

from aggmatch.augment.settings import OPERATIONS, Family, Interpolation
from aggmatch.kernels import triton_works

ONE = 1 << 16
"""1 in the 16.16 fixed point of Pillow's nearest-neighbour transform."""
INDEX = {name: index for index, name in enumerate(OPERATIONS)}
"""Name of an operation → its number in `op_N`."""
FAMILIES: tuple[Family, ...] = ("geometric", "table", "blend", "none")
FAMILY_OF = torch.tensor([FAMILIES.index(operation.family) for operation in OPERATIONS.values()])
"""Number of an operation → position of its family."""


def pick(images: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the pixels at the given positions, the same in all channels of an image.

    out[n, c, y, x] = images[n, c, row[n, y, x], column[n, y, x]]

    images: (N, C, H, W); row, column: integers that broadcast to (N, H, W). Returns (N, C, H, W).
    """
    index_N1P = (row * images.shape[-1] + column).flatten(1)[:, None].long()
    return images.flatten(2).gather(2, index_N1P.expand(-1, images.shape[1], -1)).view_as(images)


# Geometric family ------------------------------------------------------------------------------------------------


def inverse_affine(op_N: Tensor, magnitude_N: Tensor, side: int) -> Tensor:
    """Return matrices from output to input coordinates; the identity for operations that are not geometric.

    rotate, by θ counter-clockwise about c = side / 2:
        x_in − c = cos θ · (x − c) − sin θ · (y − c),   y_in − c = sin θ · (x − c) + cos θ · (y − c)
    shear_x: x_in = x + m · y;   translate_x: x_in = x + m · side;   and likewise for y

    Returns (N, 2, 3), float64 as in Pillow, so that both round to the same fixed point.
    """
    magnitude_N = magnitude_N.double()
    rotate, shear_x, shear_y, translate_x, translate_y = (
        torch.where(op_N == INDEX[name], magnitude_N, 0)
        for name in ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
    )
    cos, sin, centre = rotate.deg2rad().cos(), rotate.deg2rad().sin(), side / 2
    x_N3 = torch.stack((cos, shear_x - sin, translate_x * side + centre * (1 - cos + sin)), dim=1)
    y_N3 = torch.stack((shear_y + sin, cos, translate_y * side + centre * (1 - cos - sin)), dim=1)
    return torch.stack((x_N3, y_N3), dim=1)


def warp(images: Tensor, matrix_N23: Tensor, interpolation: Interpolation = "nearest") -> Tensor:
    """Sample every image through its inverse affine map; pixels from outside the image are black.

    out[y, x] = images[M · (x + ½, y + ½, 1)], pixel (i, j) covering [i, i + 1) × [j, j + 1)

    images: (N, C, H, W); matrix_N23: float64. Returns (N, C, H, W).
    """
    side = images.shape[-1]
    # Fixed point as in Pillow: sums are exact, so that all devices round a coordinate to the same pixel.
    start_N2 = fixed_point(matrix_N23[:, :, 2] + matrix_N23[:, :, :2].sum(2) / 2)
    step_N22 = fixed_point(matrix_N23[:, :, :2])
    line = torch.arange(side, device=images.device, dtype=torch.int32)
    place_N2HW = start_N2[:, :, None, None] + step_N22[:, :, :1, None] * line + step_N22[:, :, 1:, None] * line[:, None]
    inside_N1HW = ((place_N2HW >= 0) & (place_N2HW < side * ONE)).all(1, keepdim=True)
    if interpolation == "nearest":
        column, row = (place_N2HW >> 16).clamp_(0, side - 1).unbind(1)
        return pick(images, row, column) * inside_N1HW

    place_N2HW = place_N2HW - ONE // 2  # relative to pixel centres
    across, along = ((place_N2HW & (ONE - 1)) / ONE).unsqueeze(2).unbind(1)
    left, top = (place_N2HW >> 16).clamp(0, side - 1).unbind(1)
    right, bottom = ((place_N2HW >> 16) + 1).clamp_(0, side - 1).unbind(1)
    pixels = images.float()
    upper, lower = (pick(pixels, row, left).lerp_(pick(pixels, row, right), across) for row in (top, bottom))
    return upper.lerp_(lower, along).to(torch.uint8) * inside_N1HW


def fixed_point(numbers: Tensor) -> Tensor:
    """Round to multiples of 2^−16, halves up; returns int32 of the same shape."""
    return (numbers * ONE + 0.5).floor_().int()


# Table family ----------------------------------------------------------------------------------------------------


def tone(images: Tensor, op_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """Replace every grey value by its entry in the table of its image and channel; (N, C, H, W) → (N, C, H, W)."""
    grey_NCP = images.flatten(2).long()
    return tone_tables(grey_NCP, op_N, magnitude_N).gather(2, grey_NCP).view_as(images)


def tone_tables(grey_NCP: Tensor, op_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """Return the lookup tables of posterize, solarize, auto-contrast and equalize; v ↦ v for all other operations.

    posterize: v with its lowest 8 − bits bits cleared;  solarize: 255 − v for v ≥ threshold
    auto-contrast: 255 (v − low) / (high − low) with the darkest and the brightest value of the channel
    equalize: ⌊(⌊s/2⌋ + pixels darker than v) / s⌋ with s = ⌊pixels below the brightest value / 255⌋, if s > 0

    grey_NCP: int64 values of all H · W pixels. Returns (N, C, 256), uint8.
    """
    grey_V = torch.arange(256, device=grey_NCP.device, dtype=torch.int32)

    bits_N = torch.where(op_N == INDEX["posterize"], magnitude_N, 8).int()
    mask_N = torch.bitwise_left_shift(255, 8 - bits_N)
    threshold_N = torch.where(op_N == INDEX["solarize"], magnitude_N, 256)
    table_NV = torch.where(grey_V < threshold_N[:, None], grey_V & mask_N[:, None], 255 - grey_V)

    low_NC, high_NC = grey_NCP.amin(2), grey_NCP.amax(2)
    stretch_NC = (op_N == INDEX["auto_contrast"])[:, None] & (low_NC < high_NC)
    # Pillow truncates the result of Python's floats: this needs float64 and a true division, not 255 · x⁻¹ as in torch.
    range_NC = torch.where(stretch_NC, high_NC - low_NC, 255).double()
    scale_NC = torch.full_like(range_NC, 255) / range_NC
    offset_NC = -torch.where(stretch_NC, low_NC, 0) * scale_NC
    table_NCV = (table_NV[:, None] * scale_NC[..., None] + offset_NC[..., None]).clamp_(0, 255).int()

    one_NCP = torch.ones((), device=grey_NCP.device, dtype=torch.int32).expand_as(grey_NCP)
    histogram_NCV = torch.zeros_like(table_NCV).scatter_add_(2, grey_NCP, one_NCP)
    darker_NCV = histogram_NCV.cumsum(2, dtype=torch.int32) - histogram_NCV
    step_NC1 = darker_NCV.gather(2, high_NC[..., None]) // 255 * (op_N == INDEX["equalize"])[:, None, None]
    equalized_NCV = ((step_NC1 // 2 + darker_NCV) // step_NC1.clamp(min=1)).clamp_(max=255)
    return torch.where(step_NC1 > 0, equalized_NCV, table_NCV).to(torch.uint8)


# Blend family ----------------------------------------------------------------------------------------------------


def blend(images: Tensor, op_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """Brightness, color, contrast and sharpness: blend towards (factor < 1) or away from (> 1) a degenerate image.

    out = degenerate + factor · (image − degenerate), clipped and truncated;  factor 1 for all other operations
    degenerate: black; luminance of the pixel; mean luminance of the image; smoothed image

    images: (N, C, H, W). Returns (N, C, H, W).
    """
    brightness, color, contrast, sharpness = (
        (op_N == INDEX[name])[:, None, None, None] for name in ("brightness", "color", "contrast", "sharpness")
    )
    pixels = images.float()
    light_N1HW = luminance(pixels)
    mean_N111 = (light_N1HW.mean((2, 3), keepdim=True, dtype=torch.float64) + 0.5).floor_().float()
    degenerate = smooth(pixels).mul_(sharpness).add_(light_N1HW * color + mean_N111 * contrast)
    factor_N111 = torch.where(brightness | color | contrast | sharpness, magnitude_N[:, None, None, None], 1)
    # In place, here and in `smooth`: on a CPU, new memory costs more than the arithmetic.
    return pixels.sub_(degenerate).mul_(factor_N111).add_(degenerate).clamp_(0, 255).to(torch.uint8)


def luminance(pixels: Tensor) -> Tensor:
    """Return ITU-R 601 luma with Pillow's 16-bit weights, rounded; whole floats (N, C, H, W) → (N, 1, H, W).

    Every sum stays below 2^24, so float32 is exact.
    """
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.unbind(1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) / 65536).floor_()[:, None]


def smooth(pixels: Tensor) -> Tensor:
    """Return the 3 × 3 mean with centre weight 5, rounded; the border stays. Whole floats (N, C, H, W)."""
    column_sums = (pixels[..., :-2, :] + pixels[..., 1:-1, :]).add_(pixels[..., 2:, :])
    smoothed = pixels.clone()
    inner = smoothed[..., 1:-1, 1:-1].mul_(4)
    for start in range(3):
        inner += column_sums[..., start : start + inner.shape[-1]]
    inner.div_(13).add_(0.5).floor_()
    return smoothed


# One round ------------------------------------------------------------------------------------------------------


def randaugment_round(
    images: Tensor,
    op_N: Tensor,
    magnitude_N: Tensor,
    families: Collection[Family] = FAMILIES,
    interpolation: Interpolation = "nearest",
) -> Tensor:
    """Apply one operation to every image: number `INDEX[name]`, magnitude in the unit of `Operation`.

    images: (N, C, H, W); families: those in `op_N`, others are skipped. Returns (N, C, H, W).
    """
    if kernels := kernels_on(images.device.type):
        return kernels.randaugment_round(images, op_N, magnitude_N, INDEX, interpolation == "bilinear")
    if not shapes_may_vary(images.device.type):
        for family in families:
            images = apply_family(family, images, op_N, magnitude_N, interpolation)
        return images
    changed, family_N = images.clone(), FAMILY_OF[op_N]
    for family in families:
        index = (family_N == FAMILIES.index(family)).nonzero()[:, 0]
        changed[index] = apply_family(family, images[index], op_N[index], magnitude_N[index], interpolation)
    return changed


def apply_family(
    family: Family, images: Tensor, op_N: Tensor, magnitude_N: Tensor, interpolation: Interpolation
) -> Tensor:
    """Apply one family of operations; images of others stay unchanged. (N, C, H, W) → (N, C, H, W)."""
    match family:
        case "geometric":
            return warp(images, inverse_affine(op_N, magnitude_N, images.shape[-1]), interpolation)
        case "table":
            return tone(images, op_N, magnitude_N)
        case "blend":
            return blend(images, op_N, magnitude_N)
        case "none":
            return images


def shapes_may_vary(device: str) -> bool:
    """Whether shapes may depend on values: a CPU has no graph to capture and nothing to wait for."""
    return device == "cpu"


@cache
def kernels_on(device: str, name: str = "randaugment") -> ModuleType | None:
    """Return a module of Triton kernels of the views, or None without a CUDA device or without Triton."""
    if device != "cuda" or not triton_works():
        return None
    return import_module(f"aggmatch.kernels.{name}")
