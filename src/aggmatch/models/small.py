"""A plain convolutional network for tiny images such as 8×8 digits: trains in seconds on a CPU."""

from torch import Tensor, nn


class SmallNet(nn.Module):
    """Six 3×3 convolutions in pairs of growing width, halving the image after the first and second pair."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = channels
        for pair, outputs in enumerate((width, 2 * width, 4 * width)):
            for half in range(2):
                stride = 2 if pair > 0 and half == 0 else 1
                layers += [
                    nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                    nn.BatchNorm2d(outputs),
                    nn.LeakyReLU(0.1),
                ]
                inputs = outputs
        self.layers = nn.Sequential(*layers)
        self.features = inputs
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, a=0.1, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """Images (B, C, H, W) → features (B, 4·width)."""
        features: Tensor = self.layers(x).mean((2, 3))
        return features
