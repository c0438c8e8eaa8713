"""Turns the hue of colour images, in one launch.

Results are whole grey values and equal those of the plain form, as in `kernels/randaugment.py`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from aggmatch.kernels.randaugment import EXACT, block_of_pixels, grey_values, pixel_blocks


@triton.jit(do_not_specialize_on_alignment=["turn_N"])  # for batches of any size: compile once
def hue_kernel(images, out, turn_N, C: tl.constexpr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Turn the hue of a block of pixels of one image."""
    n = tl.program_id(0)
    image = n.to(tl.int64) * C * SIDE * SIDE
    pixel, exists = block_of_pixels(tl.program_id(1) * BLOCK, SIDE, BLOCK)
    red = grey_values(images + image, pixel, exists)
    green = grey_values(images + image, SIDE * SIDE + pixel, exists)
    blue = grey_values(images + image, 2 * SIDE * SIDE + pixel, exists)
    value = tl.maximum(red, tl.maximum(green, blue))
    span = value - tl.minimum(red, tl.minimum(green, blue))
    difference = tl.where(value == red, green - blue, tl.where(value == green, blue - red, red - green))
    # Triton's own quotient of float32 is not right to the last bit.
    sixths = tl.div_rn(difference.to(tl.float32), tl.maximum(span, 1).to(tl.float32))
    sixths += tl.where(value == red, 0.0, tl.where(value == green, 2.0, 4.0))
    sixths += 6 * tl.load(turn_N + n)
    for c in tl.static_range(C):
        k = (5 - 2 * c + sixths) % 6  # with the sign of its first operand
        k = tl.where(k < 0, k + 6, k)
        part = tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)
        turned = value.to(tl.float32) - span.to(tl.float32) * part + 0.5
        tl.store(out + image + c * SIDE * SIDE + pixel, turned.to(tl.int32).to(tl.uint8), mask=exists)


def turn_hue(images: Tensor, turn_N: Tensor) -> Tensor:
    """Turn the hue of each image, like the function of this name in `augment`.

    images: (N, 3, H, W), uint8; turn_N: float32. Returns (N, 3, H, W).
    """
    images = images.contiguous()
    out = torch.empty_like(images)
    grid, constants = pixel_blocks(images)
    hue_kernel[grid](images, out, turn_N.contiguous(), **constants, **EXACT)
    return out
