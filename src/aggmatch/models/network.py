"""What every network is: images in, feature and logits out."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import NamedTuple

import torch
from torch import Tensor, nn

from aggmatch.errors import AggMatchError


def images_at_once(side: int, most: int = 1000) -> int:
    """Images to take at a time: `most` of 32 × 32 pixels or less, of larger ones as many as have as many pixels."""
    return max(1, min(most, most * 32 * 32 // side**2))


class Output(NamedTuple):
    """What a network says about a batch."""

    feature: Tensor
    """v, the pooled vector before the classifier, (B, D)."""
    logits: Tensor
    """(B, Y)."""

    def split(self, sizes: Sequence[int]) -> list["Output"]:
        """Parts of the batch, in order."""
        pairs = zip(self.feature.split(list(sizes)), self.logits.split(list(sizes)), strict=True)
        return [Output(feature, logits) for feature, logits in pairs]


class Network(nn.Module):
    """A backbone and a linear classifier behind the data set's normalisation.

    Takes uint8 images (B, C, H, W) as they are stored: mean and deviation of the training images are buffers, so a
    saved network needs nothing else to predict. Returns float32; inside it computes in bf16 where `mixed` is set.

    backbone: any module from normalised images to features (B, D), or to a tuple of features and logits (B, Y); in the
    latter case `classifier` serves only methods that classify other features. A backbone whose `forward` takes
    `targets` saves the backward pass of the last images itself; of any other, their gradient is cut off here.
    """

    mean: Tensor  # (C, 1, 1), of pixels in [0, 1]
    deviation: Tensor

    head: nn.Module
    """What a method adds, such as a projection; trained, averaged and saved with the rest, called by the method."""

    def __init__(self, backbone: nn.Module, classes: int, channels: int) -> None:
        super().__init__()
        self.classes, self.channels = classes, channels
        self.mixed = False
        self.target_only = "targets" in signature(backbone.forward).parameters
        self.backbone = backbone
        self.features = feature_width(backbone, channels)
        self.classifier = nn.Linear(self.features, classes)
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.head = nn.Identity()
        self.register_buffer("mean", torch.full((channels, 1, 1), 0.5))
        self.register_buffer("deviation", torch.full((channels, 1, 1), 0.25))

    @torch.no_grad()
    def normalize_by(self, pixels: Tensor) -> None:
        """Take mean and deviation from uint8 training images (N, C, H, W)."""
        # Chunks: the float copy of a large training set would be many times its size.
        sum_C = torch.zeros(self.channels, dtype=torch.float64)
        square_C = torch.zeros_like(sum_C)
        for chunk in pixels.split(images_at_once(pixels.shape[-1], 4096)):
            unit = chunk.cpu().double() / 255
            sum_C += unit.sum((0, 2, 3))
            square_C += unit.square().sum((0, 2, 3))
        count = pixels.numel() / self.channels
        mean_C, square_C = sum_C / count, square_C / count
        deviation_C = (square_C - mean_C.square()).clamp(min=0).sqrt().clamp(min=1 / 255)  # a constant channel is kept
        self.mean.copy_(mean_C.view(-1, 1, 1))
        self.deviation.copy_(deviation_C.view(-1, 1, 1))

    def forward(self, images: Tensor, targets: int = 0) -> Output:
        """Feature and logits of a batch of images with grey levels 0 to 255, uint8 or float (where they are mixed).

        The last `targets` images take part in the statistics of BatchNorm but get no gradient.
        """
        x = (images.float() / 255 - self.mean) / self.deviation
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.mixed):
            x = x.contiguous(memory_format=torch.channels_last) if images.is_cuda else x
            feature = self.backbone(x, targets) if self.target_only else self.backbone(x)
            feature, logits = feature if isinstance(feature, tuple) else (feature, self.classifier(feature))
        if targets and not self.target_only:
            feature, logits = (stop_gradient(values, targets) for values in (feature, logits))
        return Output(feature.float(), logits.float())


def stop_gradient(values: Tensor, last: int) -> Tensor:
    """The same values, (B, ...), of which the last ones pass no gradient on."""
    return torch.cat([values[:-last], values[-last:].detach()])


def feature_width(backbone: nn.Module, channels: int, side: int = 32) -> int:
    """D: the backbone's attribute `features`, or else the width of what it makes of an image."""
    if isinstance(width := getattr(backbone, "features", None), int):
        return width
    training = backbone.training
    with torch.no_grad():
        output = backbone.eval()(torch.zeros(1, channels, side, side))
    backbone.train(training)
    feature = output[0] if isinstance(output, tuple) else output
    if not isinstance(feature, Tensor) or feature.ndim != 2:
        raise AggMatchError(
            f"{type(backbone).__name__} must return features (B, D), or a tuple of features (B, D) and logits (B, Y)."
        )
    return feature.shape[1]


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Within, BatchNorm normalises with the statistics of its batch but leaves the running ones as they are."""
    norms = [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def parameter_count(network: nn.Module) -> int:
    """Number of trainable values."""
    return sum(parameter.numel() for parameter in network.parameters())
