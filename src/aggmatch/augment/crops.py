"""Large and small random crops, resized, flipped and recoloured; every image draws its own parameters.

Shapes: N images, C channels (1 or 3), H rows, W columns (H = W, the side), S the side of the crops, T tries.
"""

import math

import torch
from torch import Tensor

from aggmatch.augment.randaugment import INDEX, kernels_on, randaugment_round, shapes_may_vary
from aggmatch.augment.settings import CropSettings
from aggmatch.functional import one_hot

ASPECT = 4 / 3
"""Largest ratio between the sides of a crop, before it is resized to a square."""
TRIES = 10
"""Number of boxes drawn for each image; the first box that fits into the image is used."""
LEAST_SIDE = 4
"""Smallest side of a small crop, in pixels."""


def side_of_small(side: int, settings: CropSettings) -> int:
    """Return the side of a small crop of an image, in pixels."""
    return max(round(settings.small_side * side), LEAST_SIDE)


def random_crop(
    images: Tensor, area: tuple[float, ...], side: int, settings: CropSettings, mirror: bool, generator: torch.Generator
) -> Tensor:
    """Return a random part of every image, its share of the area within `area`: uint8, (N, C, H, W) → (N, C, S, S)."""
    count = len(images)
    box = draw_boxes(count, images.shape[-1], area, generator)
    mirrored_N = uniform((count,), generator) < mirror / 2
    return recolor(cut_and_resize(images, *box, mirrored_N, side), settings, generator)


def uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return numbers from U[0, 1) on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device)


def draw_boxes(
    count: int, side: int, area: tuple[float, ...], generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw boxes: top, left, height and width in whole pixels, each (N,).

    The share of the image is uniform in `area`, the aspect ratio log-uniform in [3/4, 4/3]. As in torchvision, the
    first of ten draws that fits into the image is used, or the whole image if none fits.
    """
    share_TN, aspect_TN = uniform((2, TRIES, count), generator)
    share_TN = torch.lerp(torch.full_like(share_TN, area[0]), torch.full_like(share_TN, area[1]), share_TN)
    stretch_TN = torch.exp((aspect_TN - 0.5) * math.log(ASPECT))  # √aspect
    root_TN = side * share_TN.sqrt()
    size_2TN = torch.stack((root_TN / stretch_TN, root_TN * stretch_TN)).round().clamp(min=1)
    size_2TN = torch.cat((size_2TN, torch.full_like(size_2TN[:, :1], side)), dim=1)  # the whole image always fits
    first_N = (size_2TN <= side).all(0).int().argmax(0)
    height_N, width_N = size_2TN.gather(1, first_N.expand(2, 1, -1)).squeeze(1)
    down_N, right_N = uniform((2, count), generator)
    top_N, left_N = (down_N * (side - height_N + 1)).floor(), (right_N * (side - width_N + 1)).floor()
    return top_N, left_N, height_N, width_N


def cut_and_resize(
    images: Tensor, top_N: Tensor, left_N: Tensor, height_N: Tensor, width_N: Tensor, mirrored_N: Tensor, side: int
) -> Tensor:
    """Crop every image to its box, resize the crop to a square, then flip some horizontally.

    As in Pillow, resizing is linear in both directions, by two matrix products: unlike sampling at points, it uses
    every pixel of a box that is larger than the square.

    images: (N, C, H, W). Returns (N, C, S, S), uint8.
    """
    row_NSH = resizing(top_N, height_N, images.shape[-2], side)
    column_NSW = resizing(left_N, width_N, images.shape[-1], side)
    column_NSW = torch.where(mirrored_N[:, None, None], column_NSW.flip(1), column_NSW)
    resized = row_NSH[:, None] @ images.float() @ column_NSW[:, None].mT
    return (resized + 0.5).to(torch.uint8)


def resizing(start_N: Tensor, length_N: Tensor, source: int, side: int) -> Tensor:
    """Return the weights of the source pixels in every pixel of the resized line, (N, S, source); rows sum to 1.

    w_sj ∝ max(0, 1 − |j + ½ − start − (s + ½)·length/S| / max(1, length/S)) for pixels j of the box, 0 for others
    """
    scale_N = length_N / side
    centre_NS = (torch.arange(side, device=start_N.device) + 0.5) * scale_N[:, None]
    place_NW = torch.arange(source, device=start_N.device) + 0.5 - start_N[:, None]
    distance_NSW = (place_NW[:, None] - centre_NS[:, :, None]).abs() / scale_N.clamp(min=1)[:, None, None]
    inside_NW = (place_NW > 0) & (place_NW < length_N[:, None])
    weight_NSW = (1 - distance_NSW).clamp(min=0) * inside_NW[:, None]
    return weight_NSW / weight_NSW.sum(-1, keepdim=True)


def recolor(images: Tensor, settings: CropSettings, generator: torch.Generator) -> Tensor:
    """Jitter, grey, solarize, equalize, in this order, each for its share of the images; (N, C, H, W) → same."""
    count = len(images)
    if (settings.jitter or settings.hue) and settings.jittered:
        op_3N, factor_3N = draw_jitter(count, settings, generator)
        turn_4N = draw_turns(op_3N, settings, generator) if settings.hue and images.shape[1] == 3 else None
        for place in range(4):
            if turn_4N is not None:
                images = turn_hue(images, turn_4N[place])
            if place < 3:
                images = randaugment_round(images, op_3N[place], factor_3N[place])
    if settings.grey and images.shape[1] == 3:
        chosen_N = uniform((count,), generator) < settings.grey
        op_N = torch.where(chosen_N, INDEX["color"], INDEX["identity"])
        images = randaugment_round(images, op_N, torch.zeros(count, device=images.device))
    for name, share in (("solarize", settings.solarized), ("equalize", settings.equalized)):
        if share:
            chosen_N, magnitude_N = uniform((2, count), generator)
            op_N = torch.where(chosen_N < share, INDEX[name], INDEX["identity"])
            images = randaugment_round(images, op_N, 256 * magnitude_N)
    return images


def draw_jitter(count: int, settings: CropSettings, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw the order of brightness, contrast and saturation (`color`) of every image, and the factors; both (3, N)."""
    order_3N = uniform((3, count), generator).argsort(0)
    op_3N = torch.where(order_3N == 0, INDEX["brightness"], INDEX["contrast"]).where(order_3N < 2, INDEX["color"])
    op_3N = op_3N.where(uniform((count,), generator) < settings.jittered, INDEX["identity"])
    return op_3N, 1 + settings.jitter * (2 * uniform((3, count), generator) - 1)


def draw_turns(op_3N: Tensor, settings: CropSettings, generator: torch.Generator) -> Tensor:
    """Draw by which share of the colour circle the hue turns before, between or after the other changes, (4, N).

    Each image with jitter turns at one of the four places, so that all orders of the four changes are equally likely.
    """
    place_N, turn_N = uniform((2, op_3N.shape[1]), generator)
    turn_N = settings.hue * (2 * turn_N - 1) * (op_3N[0] != INDEX["identity"])
    return turn_N * one_hot((4 * place_N).long(), 4).T


def turn_hue(images: Tensor, turn_N: Tensor) -> Tensor:
    """Turn the hue of colour images by a share of the colour circle; lightness and saturation (HSV) stay the same.

    images: (N, 3, H, W). Returns (N, 3, H, W), uint8.
    """
    if kernels := kernels_on(images.device.type, "hue"):
        return kernels.turn_hue(images, turn_N)
    if not shapes_may_vary(images.device.type):
        return with_hue_turned(images, turn_N)
    index = turn_N.nonzero()[:, 0]
    return images.index_copy(0, index, with_hue_turned(images[index], turn_N[index]))


def with_hue_turned(images: Tensor, turn_N: Tensor) -> Tensor:
    """Compute `turn_hue` for every image.

    With V the largest and δ the range of the channels of a pixel, channel n of (5, 3, 1) for red, green and blue is
    V − δ·clamp(min(k, 4 − k), 0, 1),   k = (n + 6·hue) mod 6.
    """
    pixels = images.float()
    red, green, blue = pixels.unbind(1)
    least_NHW, value_NHW = pixels.aminmax(dim=1)
    range_NHW = value_NHW - least_NHW
    sixths_NHW = torch.where(
        value_NHW == red, green - blue, torch.where(value_NHW == green, blue - red, red - green)
    ) / range_NHW.clamp(min=1)
    sixths_NHW = sixths_NHW + torch.where(value_NHW == red, 0, torch.where(value_NHW == green, 2, 4))
    sixths_NHW = sixths_NHW + 6 * turn_N[:, None, None]
    channel_3 = 5 - 2 * torch.arange(3, device=images.device)
    k_N3HW = (channel_3[:, None, None] + sixths_NHW[:, None]) % 6
    part_N3HW = torch.minimum(k_N3HW, 4 - k_N3HW).clamp(0, 1)
    return (value_NHW[:, None] - range_NHW[:, None] * part_N3HW + 0.5).to(torch.uint8)
