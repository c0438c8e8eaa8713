"""A backbone as a user writes it, which brings its weights along."""

import torch
from torch import Tensor, nn


class Bands(nn.Module):
    """Mean brightness of the four rows, columns and diagonals of small images, (B, 12); nothing is random."""

    pretrained = True
    features, side, pixel_mean, pixel_deviation = 12, 4, 0.5, 0.25

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) → features (B, 12)."""
        grey = self.scale * x.mean(1)
        rows, columns = grey[:, :4].mean(2), grey[:, :, :4].mean(1)
        diagonals = [torch.diagonal(grey, k, 1, 2).mean(1) for k in range(4)]
        return torch.cat([rows, columns, torch.stack(diagonals, 1)], 1)
