"""Backbones as a user writes them: plain modules without a parameter `targets`."""

from torch import Tensor, nn


class FeatureAndLogits(nn.Module):
    """Two convolutions; returns features (B, 12) and logits (B, Y)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(12),
            nn.ReLU(),
        )
        self.output = nn.Linear(12, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Images (B, C, H, W) → features (B, 12), logits (B, Y)."""
        feature = self.layers(x).mean((2, 3))
        return feature, self.output(feature)


class FeatureAlone(nn.Module):
    """One convolution and GroupNorm; returns features (B, 8)."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) → features (B, 8)."""
        return self.layers(x).mean((2, 3))
