"""Wide residual networks as in FixMatch: pre-activation, leaky ReLU, slow BatchNorm statistics."""

import math
from collections.abc import Callable
from functools import cache

from torch import Tensor, nn

from aggmatch.kernels import triton_works
from aggmatch.models.target_only import BatchNorm, convolve, leaky_relu

LARGE = 37
"""Depth of the variant for larger images."""


def batch_norm(channels: int) -> BatchNorm:
    """Return BatchNorm with FixMatch's momentum, 0.999 in TensorFlow's convention."""
    return BatchNorm(channels, eps=1e-3, momentum=1e-3)


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Return a convolution without bias, with weights from a normal distribution of variance 2 / fan-out."""
    layer = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (size * size * outputs)))
    return layer


class Block(nn.Module):
    """Two 3×3 convolutions, each after BatchNorm and activation, and a shortcut around them.

    The residual branch gets the activated input. The shortcut gets the raw input, except in the first block of the
    network (`activate_shortcut`).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, activate_shortcut: bool) -> None:
        super().__init__()
        self.activate_shortcut = activate_shortcut
        self.norm1 = batch_norm(inputs)
        self.conv1 = convolution(inputs, outputs, 3, stride)
        self.norm2 = batch_norm(outputs)
        self.conv2 = convolution(outputs, outputs, 3)
        self.shortcut = convolution(inputs, outputs, 1, stride) if inputs != outputs else None

    def forward(self, x: Tensor, targets: int = 0) -> Tensor:
        """Return (B, outputs, H/stride, W/stride) for x (B, inputs, H, W)."""
        activated = leaky_relu(self.norm1(x, targets))
        shortcut = activated if self.activate_shortcut else x
        if self.shortcut is not None:
            shortcut = convolve(self.shortcut, shortcut, targets)
        inner = leaky_relu(self.norm2(convolve(self.conv1, activated, targets), targets))
        return shortcut + convolve(self.conv2, inner, targets)


class WideResNet(nn.Module):
    """WRN-depth-width: three stages of (depth − 4)/6 blocks, with 16, 32 and 64 times `width` channels.

    WRN-37 is the variant for larger images such as STL-10's: four stages of four blocks, and the first stage halves the
    image too.
    """

    def __init__(self, channels: int, depth: int, width: int) -> None:
        super().__init__()
        large = depth == LARGE
        if (not large and (depth < 10 or (depth - 4) % 6)) or width < 1:
            raise ValueError(f"depth must be {LARGE} or 10, 16, 22, ... and width at least 1, got {depth}, {width}")
        blocks = 4 if large else (depth - 4) // 6
        widths = [16, *(16 * width * 2**stage for stage in range(4 if large else 3))]
        self.stem = convolution(channels, widths[0], 3)
        self.blocks = nn.ModuleList()
        for stage in range(len(widths) - 1):
            for number in range(blocks):
                first = number == 0
                inputs = widths[stage] if first else widths[stage + 1]
                stride = 2 if first and (stage > 0 or large) else 1
                self.blocks.append(Block(inputs, widths[stage + 1], stride, activate_shortcut=first and stage == 0))
        self.norm = batch_norm(widths[-1])
        self.features = widths[-1]
        self.fusible = width & (width - 1) == 0 and not large  # tiles of the kernels are powers of 2

    def forward(self, x: Tensor, targets: int = 0) -> Tensor:
        """Return features (B, 64·width) of images (B, C, H, W); the last `targets` images get no gradient."""
        by_batch = self.norm.training  # not in evaluation, nor with fixed statistics
        fused = fused_pass() if by_batch and self.fusible and x.is_cuda else None
        if fused is not None:
            return fused(self, x, targets)
        x = convolve(self.stem, x, targets)
        for block in self.each_block():
            x = block(x, targets)
        return leaky_relu(self.norm(x, targets)).mean((2, 3))

    def each_block(self) -> list[Block]:
        """The blocks in order."""
        return [block for block in self.blocks if isinstance(block, Block)]


@cache
def fused_pass() -> Callable[[WideResNet, Tensor, int], Tensor] | None:
    """Return the training pass in fused kernels; None without Triton."""
    if not triton_works():
        return None
    from aggmatch.models.fused import fused_features

    return fused_features
