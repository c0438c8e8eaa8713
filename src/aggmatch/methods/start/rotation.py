"""The rotation task: a head predicts by which quarter turn an image was rotated, which teaches features without labels.

Shape suffixes: R rotated images.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.models import Network, Output

TURNS = 4


def rotate_quarters(images: Tensor, count: int) -> Tensor:
    """The first images, at most `count`, in four parts that are rotated by 0°, 90°, 180° and 270°.

    (N, C, H, W) → (R, C, H, W), R the largest multiple of 4 up to N and `count`; at least 4 images are needed.
    """
    part = rotated_count(count, len(images)) // TURNS
    return torch.cat([torch.rot90(images[k * part : (k + 1) * part], k, (2, 3)) for k in range(TURNS)])


def rotated_count(count: int, images: int) -> int:
    """R: the largest multiple of 4 up to `count` and the number of images."""
    return min(count, images) // TURNS * TURNS


def rotation_loss(rotated: Output, online: Network) -> Tensor:
    """Cross entropy of the quarter turns of `rotate_quarters`, 0-d."""
    turn_R = torch.arange(TURNS, device=rotated.feature.device).repeat_interleave(len(rotated.feature) // TURNS)
    return F.cross_entropy(online.head(rotated.feature), turn_R)
