"""EfficientNet-Lite0, a small network for photos, whose ImageNet weights come with a package (extra `pretrained`)."""

import hashlib
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from aggmatch.errors import AggMatchError
from aggmatch.models.pretrained import HINT, WEIGHTS_PACKAGE, read_state

STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
"""Expansion, kernel size, stride of the first block, width and number of blocks of each stage."""
STEM, LAST = 32, 1280
GRID_STAGE, GRID = 5, 2
"""Position of the stage whose means over the quarters of the image are features, and the quarters in a row."""
SCALES = (0.2, 0.5, 1.0)
"""Factors of the features of the three layers, which then weigh alike in distances between images."""
FILE = "models/efficientnet-lite0-57934424.pth"
SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"


class SameConv2d(nn.Conv2d):
    """A convolution whose output has ⌈side / stride⌉ pixels; an odd padding has its extra pixel right and below."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) → (B, channels, ⌈H/stride⌉, ⌈W/stride⌉)."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        if stride == 1:
            return F.conv2d(x, self.weight, self.bias, 1, kernel // 2, 1, self.groups)
        height, width = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in x.shape[2:])
        padded = F.pad(x, (width // 2, width - width // 2, height // 2, height - height // 2))
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, 1, self.groups)


def unit(
    inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1, *, activate: bool = True
) -> nn.Sequential:
    """Convolution, BatchNorm, and ReLU6 if `activate`."""
    convolution = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out")
    norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)
    return nn.Sequential(convolution, norm, *([nn.ReLU6()] if activate else []))


class Block(nn.Module):
    """Inverted residual block: expand the channels, convolve each of them alone, project them to few."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.layers = nn.Sequential(
            *([unit(inputs, inner)] if expansion > 1 else []),
            unit(inner, inner, kernel, stride, groups=inner),
            unit(inner, outputs, activate=False),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) → (B, outputs, ⌈H/stride⌉, ⌈W/stride⌉)."""
        y: Tensor = self.layers(x)
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """A small network for photos, with ImageNet weights (extra `pretrained`); grey images are shown as colour.

    Maps images (B, 1 or 3, H, W) of any size to features (B, 2368): means over the quarters of the image after the
    stage with 192 channels, over the image after the last stage, and after the last layer. Earlier layers know shapes
    and where they are, which the classes of ImageNet do not need, but those of others do.

    Example: `EfficientNetLite0(3)(torch.zeros(2, 3, 112, 112)).shape` is (2, 2368).
    """

    features = STAGES[GRID_STAGE][3] * GRID**2 + STAGES[-1][3] + LAST
    side = 112
    pixel_mean, pixel_deviation = 127 / 255, 128 / 255

    def __init__(self, channels: int = 3, classes: int = 0) -> None:
        super().__init__()
        self.stem = unit(3, STEM, 3, 2)
        self.blocks = nn.Sequential(*blocks())
        self.last = unit(STAGES[-1][3], LAST)

    def forward(self, x: Tensor) -> Tensor:
        """Return features (B, 2368) of normalised images."""
        before = sum(count for *_, count in STAGES[: GRID_STAGE + 1])
        middle = self.blocks[:before](self.stem(x.expand(-1, 3, -1, -1)))
        end = self.blocks[before:](middle)
        quarters = F.adaptive_avg_pool2d(middle, GRID).flatten(1)
        layers = (quarters, end.mean((2, 3)), self.last(end).mean((2, 3)))
        return torch.cat([scale * layer for scale, layer in zip(SCALES, layers, strict=True)], 1)

    def installed_weights(self) -> Mapping[str, Tensor]:
        """Read the ImageNet weights of the extra `pretrained`; raise an `AggMatchError` if it is missing or damaged."""
        spec = find_spec(WEIGHTS_PACKAGE)
        if spec is None or spec.origin is None:
            raise AggMatchError(f"The weights of efficientnet-lite0 are not installed. {HINT}")
        path = Path(spec.origin).parent / FILE
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise AggMatchError(
                f"Cannot read {path}: {error.strerror}. Install the extra `pretrained` again."
            ) from None
        if digest != SHA256:
            raise AggMatchError(f"{path} is not the published file. Install the extra `pretrained` again.")
        return read_state(path)

    def adapted(self, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Return the published tensors under our names: the same order, followed by a classifier, which is dropped."""
        own = self.state_dict()
        if own.keys() == state.keys():
            return state
        return dict(zip(own, list(state.values())[: len(own)], strict=False))

    def fuse(self) -> None:
        """Merge BatchNorm into the convolutions: faster, and equal up to rounding. It cannot be trained then."""
        self.eval()
        for parts in list(self.modules()):
            if isinstance(parts, nn.Sequential) and isinstance(parts[0], SameConv2d):
                parts[0] = fuse_conv_bn_eval(parts[0], parts[1])  # type: ignore[arg-type]
                parts[1] = nn.Identity()


def blocks() -> Iterator[Block]:
    """The blocks of all stages, in order."""
    inputs = STEM
    for expansion, kernel, stride, width, count in STAGES:
        for number in range(count):
            yield Block(inputs, width, expansion, kernel, 1 if number else stride)
            inputs = width
