"""A pretrained backbone that is ready at once."""

import torch
from torch import Tensor, nn


class Edges(nn.Module):
    """Mean brightness of the first four rows and columns of images, (B, 8); nothing is random."""

    pretrained = True
    features, side, pixel_mean, pixel_deviation = 8, 4, 0.5, 0.25

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) → features (B, 8)."""
        grey = self.scale * x.mean(1)
        return torch.cat([grey[:, :4].mean(2), grey[:, :, :4].mean(1)], 1)
