"""The network of every method: images in, feature and logits out."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.distributed import Processes
from aggmatch.errors import AggMatchError
from aggmatch.models.shared_norm import synchronize

LEAST_MEMORY = 10
"""Least number of steps that BatchNorm's running statistics remember; it is PyTorch's default."""


def images_at_once(side: int, most: int = 1000) -> int:
    """Return a batch size that fits into memory: `most` images of 32 × 32 pixels or less, fewer larger images."""
    return max(1, min(most, most * 32 * 32 // side**2))


class Output(NamedTuple):
    """What a network returns for a batch.

    Example: `network(images).logits.softmax(-1)`.
    """

    feature: Tensor
    """v, the pooled vector before the classifier, (B, D) float32."""
    logits: Tensor
    """(B, Y) float32."""

    def split(self, sizes: Sequence[int]) -> list["Output"]:
        """Return parts of the batch, of the given sizes, in order."""
        return [Output(*pair) for pair in zip(*(values.split(list(sizes)) for values in self), strict=True)]


class Network(nn.Module):
    """A backbone and a linear classifier, with the normalisation of the data set in front.

    backbone: any module that maps normalised images (B, C, H, W) to features (B, D), or to a tuple of features and
    logits (B, Y); `classifier` then serves only methods that classify other features. D is the backbone's integer
    attribute `features`, or else found by a trial on images of 32 × 32 pixels. A backbone whose `forward` has a
    parameter `targets` skips the backward pass of target-only images itself. Dropout in a backbone uses torch's global
    generator, so that resumed runs are then not equal to the bit. classes: Y. channels: C.

    frozen: a pretrained module from images to features, in front of the backbone, which then takes its features. It is
    not part of the network's weights: it is not trained, averaged or saved with them. The network takes images, or
    their features by `frozen`, which can be computed once.
    side: images with a smaller side are enlarged to it; 0 for none.

    Mean and deviation of the training images, or those that a pretrained backbone wants, are buffers, so that a saved
    network needs nothing else to predict. The backbone computes in bfloat16 if `mixed` is set. If `exact` is set, it
    never skips a backward pass. If `fixed_norm` is set, BatchNorm normalises by its stored statistics in training too.
    After `divide`, several processes share the work of each training pass.

    Example: `Network(MyBackbone(3, 10), 10, 3)(images).logits` with images (B, 3, H, W) uint8.
    """

    mean: Tensor  # (C, 1, 1), of pixels in [0, 1]
    deviation: Tensor
    head: nn.Module
    """A module of the method, such as a projection. It is trained, averaged and saved here; the method calls it."""

    frozen: nn.Module | None

    def __init__(
        self, backbone: nn.Module, classes: int, channels: int, *, frozen: nn.Module | None = None, side: int = 0
    ) -> None:
        super().__init__()
        self.classes, self.channels, self.side = classes, channels, side
        self.mixed, self.exact, self.fixed_norm = False, False, False
        object.__setattr__(self, "frozen", frozen)  # not registered as a part
        self.target_only = "targets" in signature(backbone.forward).parameters
        self.backbone = backbone
        self.features = feature_width(backbone, channels, classes)
        self.classifier = nn.Linear(self.features, classes)
        nn.init.xavier_normal_(self.classifier.weight)
        nn.init.zeros_(self.classifier.bias)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # faster, on CPUs too
        self.head = nn.Identity()
        self.processes: Processes | None = None
        """Those that share the work of a training pass; None if this process does it alone."""
        self.register_buffer("mean", torch.full((channels, 1, 1), 0.5))
        self.register_buffer("deviation", torch.full((channels, 1, 1), 0.25))

    @torch.no_grad()
    def normalize_by(self, pixels: Tensor) -> None:
        """Set mean and deviation to those that a pretrained backbone wants, or of uint8 images (N, C, H, W)."""
        wanting = self.frozen or self.backbone
        if (mean := getattr(wanting, "pixel_mean", None)) is not None:
            self.mean.copy_(torch.as_tensor(mean).view(-1, 1, 1))
            self.deviation.copy_(torch.as_tensor(wanting.pixel_deviation).view(-1, 1, 1))
            return
        # Counts of grey values, in chunks: exact, and a copy of a large training set would be many times its size.
        count_CV = torch.zeros(self.channels, 256, dtype=torch.long)
        for chunk in pixels.split(images_at_once(pixels.shape[-1], 4096)):
            for counts, channel in zip(count_CV, chunk.cpu().unbind(1), strict=True):
                counts += torch.bincount(channel.flatten(), minlength=256)
        share_CV = count_CV.double() / (pixels.numel() / self.channels)
        unit_V = torch.arange(256, dtype=torch.float64) / 255
        mean_C, square_C = share_CV @ unit_V, share_CV @ unit_V.square()
        deviation_C = (square_C - mean_C.square()).clamp(min=0).sqrt().clamp(min=1 / 255)  # never 0
        self.mean.copy_(mean_C.view(-1, 1, 1))
        self.deviation.copy_(deviation_C.view(-1, 1, 1))

    def divide(self, processes: Processes, *, synchronized: bool) -> None:
        """Divide every training pass among processes that hold copies of this network and of the whole batch.

        synchronized: whether BatchNorm in the backbone takes its statistics from the whole batch, as one process does;
        otherwise each process takes those of its own rows. The head gets gathered features, so that it sees whole
        batches anyway.
        """
        if not processes.divides:
            return
        self.processes = processes
        if synchronized:
            synchronize(self.backbone, processes)

    def forward(self, images: Tensor, targets: int = 0) -> Output:
        """Return feature and logits of images (B, C, H, W) with values from 0 to 255, uint8 or float.

        With a frozen backbone, `images` may also be its features of them, (B, D). The last `targets` images are
        target-only: they count in BatchNorm's statistics, but the loss has no gradient by their outputs. If `exact` is
        set, the gradient of the statistics still passes through them. In training, several processes compute a share of
        the rows each, and all return the whole.
        """
        if targets and self.fixed_norm:  # images do not depend on each other then
            learned = self(images[:-targets])
            with torch.no_grad():
                constant = self(images[-targets:])
            return Output(*(torch.cat(pair) for pair in zip(learned, constant, strict=True)))
        skipped = targets if self.target_only and not self.exact else 0
        if self.training and self.processes:
            feature, logits = self.gathered(images, targets, skipped, self.processes)
        else:
            feature, logits = self.backbone_output(images, skipped)
        if logits is None:
            with torch.autocast(images.device.type, torch.bfloat16, enabled=self.mixed):
                logits = self.classifier(feature)
        if targets and not skipped:
            feature, logits = (torch.cat([part[:-targets], part[-targets:].detach()]) for part in (feature, logits))
        return Output(feature.float(), logits.float())

    def backbone_output(self, images: Tensor, skipped: int) -> tuple[Tensor, Tensor | None]:
        """Return features of images and, if the backbone has them, logits. skipped: images without a backward pass."""
        x = self.embed(images) if self.frozen else self.normalized(images)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.mixed):
            options = (skipped,) if self.target_only else ()
            output = self.backbone(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x, *options)
        return check_output(self.backbone, output, self.features, self.classes)

    def gathered(
        self, images: Tensor, targets: int, skipped: int, processes: Processes
    ) -> tuple[Tensor, Tensor | None]:
        """Return the same of all images, of which this process computes its share."""
        world = processes.world
        if len(images) % world or targets % world:
            raise AggMatchError(
                f"{world} processes cannot share a training pass of {len(images)} images, {targets} of them without a "
                f"gradient. Change train.batch, or the number of processes."
            )
        feature, logits = self.backbone_output(images[processes.rank :: world], skipped // world)
        if logits is None:
            return gather_rows(feature.float(), processes), None
        whole = gather_rows(torch.cat([feature.float(), logits.float()], dim=1), processes)
        feature, logits = whole.split([self.features, self.classes], dim=1)
        return feature, logits

    def normalized(self, images: Tensor) -> Tensor:
        """Return images as float, enlarged to `side` if they are smaller, and normalised."""
        if images.shape[-1] < self.side:
            enlarged = F.interpolate(images.float(), (self.side, self.side), mode="bicubic", align_corners=False)
            images = enlarged.clamp(0, 255)
        return (images.float() / 255 - self.mean) / self.deviation

    @torch.no_grad()
    def embed(self, images: Tensor) -> Tensor:
        """Return the features by the frozen backbone, (B, D); features stay as they are."""
        assert self.frozen is not None, "the network has no frozen backbone"
        if images.ndim == 2:
            return images
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.mixed):
            output = self.frozen(self.normalized(images).contiguous(memory_format=torch.channels_last))
            feature, _ = check_output(self.frozen, output, 0, self.classes)
        return feature.float()

    def train(self, mode: bool = True) -> Self:
        """Switch between training and evaluation; BatchNorm with fixed statistics always evaluates."""
        super().train(mode)
        if self.fixed_norm:
            for norm in batch_norms(self.backbone):
                norm.eval()
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the frozen backbone too, when the network moves to another device."""
        if self.frozen is not None:
            self.frozen._apply(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]


class Standardize(nn.Module):
    """Standardises features of a frozen backbone by mean and deviation over the training images.

    It is the backbone of a network on frozen features: what remains to be trained is the classifier, and the head of
    the method.
    """

    mean: Tensor  # (D,)
    deviation: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("deviation", torch.ones(features))

    @torch.no_grad()
    def fit(self, feature_ND: Tensor) -> None:
        """Set mean and deviation to those of the features (N, D) of plain training images."""
        values = feature_ND.float()
        self.mean.copy_(values.mean(0))
        self.deviation.copy_(values.std(0, correction=0).clamp(min=1e-3))

    def forward(self, feature_BD: Tensor) -> Tensor:
        """(B, D) → (B, D)."""
        return (feature_BD.float() - self.mean) / self.deviation


def feature_width(backbone: nn.Module, channels: int, classes: int, side: int = 32) -> int:
    """Return D: the backbone's attribute `features`, or the width of its output for two images."""
    if isinstance(width := getattr(backbone, "features", None), int):
        return width
    training = backbone.training
    try:
        with torch.no_grad():
            output = backbone.eval()(torch.zeros(2, channels, side, side))
    except Exception as error:  # whatever the module raises
        raise AggMatchError(
            f"{type(backbone).__name__} fails on images (2, {channels}, {side}, {side}): {error}. If it needs another "
            f"size, set its attribute `features` to the width of its features."
        ) from error
    backbone.train(training)
    return check_output(backbone, output, 0, classes)[0].shape[1]


def check_output(backbone: nn.Module, output: object, features: int, classes: int) -> tuple[Tensor, Tensor | None]:
    """Return features (B, D) and logits (B, Y) or None; raise an `AggMatchError` for other shapes. D = 0: any width."""
    parts = output if isinstance(output, tuple) else (output,)
    # Of the shapes, only widths are compared: the batch size is symbolic while a model is exported.
    found = [part.shape[1] if isinstance(part, Tensor) and part.ndim == 2 else 0 for part in parts]
    if found and all(found) and found == [features or found[0], classes][: len(found)]:
        return parts[0], parts[1] if len(parts) == 2 else None
    shapes = ", ".join(str(tuple(part.shape)) if isinstance(part, Tensor) else type(part).__name__ for part in parts)
    raise AggMatchError(
        f"{type(backbone).__name__} must return features (B, {features or 'D'}), or a tuple of features and logits "
        f"(B, {classes}), got {shapes}."
    )


def gather_rows(row_BF: Tensor, processes: Processes) -> Tensor:
    """Return the rows of all processes, (world·B, F); process r holds the rows r, r + world, r + 2·world, ...

    The gradient of its own rows is multiplied by the number of processes: the mean of the gradients of parameters over
    the processes is then their sum over the rows, as in one process.
    """
    whole: Tensor = GatherRows.apply(row_BF, processes)  # type: ignore[no-untyped-call]
    return whole


class GatherRows(torch.autograd.Function):
    """See `gather_rows`."""

    @staticmethod
    def forward(ctx: Any, row_BF: Tensor, processes: Processes) -> Tensor:
        """Gather the rows of all processes in their order."""
        ctx.processes = processes
        return processes.gather(row_BF).transpose(0, 1).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of this process's rows."""
        processes = ctx.processes
        return gradients[0][processes.rank :: processes.world] * processes.world, None


def batch_norms(network: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return all BatchNorm layers."""
    return [module for module in network.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


@contextmanager
def frozen_statistics(network: nn.Module) -> Iterator[None]:
    """Keep the running statistics of BatchNorm unchanged in the block; it still normalises by its batch."""
    norms = batch_norms(network)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum


def shorten_memory(network: nn.Module, steps: float) -> None:
    """Let the running statistics of BatchNorm remember at most this number of steps, but at least ten."""
    for norm in batch_norms(network):
        if norm.momentum is not None:  # None: the mean of all steps
            norm.momentum = max(norm.momentum, 1 / max(steps, LEAST_MEMORY))


def parameter_count(network: nn.Module) -> int:
    """Return the number of trainable values."""
    return sum(parameter.numel() for parameter in network.parameters())
