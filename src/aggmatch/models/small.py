"""A plain convolutional network for tiny images such as 8×8 digits: trains in seconds on a CPU."""

from torch import Tensor, nn

from aggmatch.models.target_only import SLOPE, BatchNorm, convolve, leaky_relu


class SmallNet(nn.Module):
    """Six 3×3 convolutions in pairs of growing width. The second and third pair start with a stride of 2."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"width must be at least 1, got {width}")
        self.layers = nn.ModuleList()
        inputs = channels
        for pair, outputs in enumerate((width, 2 * width, 4 * width)):
            for half in range(2):
                stride = 2 if pair > 0 and half == 0 else 1
                convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
                nn.init.kaiming_normal_(convolution.weight, a=SLOPE, mode="fan_out")
                self.layers.extend([convolution, BatchNorm(outputs)])
                inputs = outputs
        self.features = inputs

    def forward(self, x: Tensor, targets: int = 0) -> Tensor:
        """Return features (B, 4·width) of images (B, C, H, W); the last `targets` images get no gradient."""
        for layer in self.layers:
            x = convolve(layer, x, targets) if isinstance(layer, nn.Conv2d) else leaky_relu(layer(x, targets))
        return x.mean((2, 3))
