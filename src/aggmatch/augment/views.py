"""Views of batches of uint8 images: every image draws its own operations and magnitudes.

Drawing parameters and applying them are separate functions. Shapes never depend on values, and nothing is copied to
the host, so that a CUDA graph can capture a view. Register the generator with the graph, and call the view once first.

Shapes: N images, C channels (1 or 3), H rows, W columns (H = W, the side), R rounds, P operations in the pool.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from aggmatch.augment.crops import random_crop, side_of_small, uniform
from aggmatch.augment.randaugment import INDEX, kernels_on, pick, randaugment_round
from aggmatch.augment.settings import OPERATIONS, ViewSettings
from aggmatch.data.images import check_images
from aggmatch.errors import AggMatchError
from aggmatch.registry import Registry

GREY = 127


def shift_and_mirror(images: Tensor, down_N: Tensor, right_N: Tensor, mirrored_N: Tensor) -> Tensor:
    """Shift every image by whole pixels, fill the border by reflection, then flip some images horizontally.

    images: (N, C, H, W); down_N, right_N: integers below the side; mirrored_N: bool. Returns (N, C, H, W).
    """
    if kernels := kernels_on(images.device.type):
        return kernels.shift_and_mirror(images, down_N, right_N, mirrored_N)
    last = images.shape[-1] - 1
    line = torch.arange(last + 1, device=images.device)
    row_NH = line - down_N[:, None]
    column_NW = torch.where(mirrored_N[:, None], last - line, line) - right_N[:, None]
    # Reflection at both edges: |i| at the left one, last − |last − i| at the right one.
    row_NH, column_NW = (last - (last - index.abs()).abs() for index in (row_NH, column_NW))
    return pick(images, row_NH[:, :, None], column_NW[:, None, :])


def cut_out(images: Tensor, top_N: Tensor, left_N: Tensor, side_N: Tensor) -> Tensor:
    """Paint a grey square into every image, clipped at the border. (N, C, H, W) → (N, C, H, W)."""
    if kernels := kernels_on(images.device.type):
        return kernels.cut_out(images, top_N, left_N, side_N, GREY)
    line = torch.arange(images.shape[-1], device=images.device)
    row_NH, column_NW = ((line >= start[:, None]) & (line < (start + side_N)[:, None]) for start in (top_N, left_N))
    return images.masked_fill((row_NH[:, :, None] & column_NW[:, None, :])[:, None], GREY)


View = Callable[["Augmenter", Tensor, torch.Generator], Tensor]
"""Takes (augmenter, images, generator); returns a view of the images.

Images are uint8, (N, C, side, side); a view has the same type, N and C. The generator is the only source of randomness.
A view may build on the views of this package, for example `augmenter.weak(images, generator)`.
"""
Draw = Callable[[int, int, torch.Generator], tuple[Tensor, ...]]
"""Takes (number of images, side, generator); returns what a view is made from, images in the last dimension."""


def is_view(part: Any) -> bool:
    """Whether an object can be called with (augmenter, images, generator)."""
    try:
        inspect.signature(part).bind(*"123")
    except (TypeError, ValueError):
        return False
    return True


VIEWS: Registry[View] = Registry(
    "view",
    "views",
    builtin=lambda: {
        name: f"{__name__}:Augmenter.{name}" for name in ("plain", "weak", "strong", "large_crop", "small_crop")
    },
    accepts=is_view,
    wanted="a function that takes (augmenter, images, generator) and returns images",
)
"""All views with a name."""


class Augmenter:
    """Makes the views that methods name.

    settings: section `views` of a run. mirror: whether a horizontal flip preserves the class; `settings.flip` wins.

    Example: `Augmenter(ViewSettings(), mirror=True)("weak", images, torch.Generator().manual_seed(0))`.
    """

    def __init__(self, settings: ViewSettings, mirror: bool) -> None:
        self.settings = settings
        self.mirror = mirror if settings.flip is None else settings.flip
        self.discrete = settings.randaugment == "discrete"
        self.rounds = settings.rounds if settings.rounds is not None else 2 if self.discrete else 3
        self.families = frozenset(OPERATIONS[name].family for name in settings.ops)
        self._pools: dict[torch.device, Tensor] = {}
        self._views = {"weak": VIEWS.load(settings.weak), "strong": VIEWS.load(settings.strong)}

    def __call__(self, view: str, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return a view of the images.

        view: `weak` or `strong`, which the settings may replace, or another view by name or `path/to/file.py:Name`.
        images: uint8, (N, 1 or 3, side, side). generator: on their device, the only source of randomness.
        Returns uint8 of the same shape, except for small crops, which have a smaller side.
        """
        check_images(images)
        result = self.view(view)(self, images, generator)
        check_images(result, f"The result of view '{view}'")
        kept = 4 if view in ("weak", "strong") else 2  # methods put weak and strong views into one batch
        if result.shape[:kept] != images.shape[:kept]:
            before, after, parts = tuple(images.shape), tuple(result.shape), "the shape" if kept == 4 else "N and C"
            raise AggMatchError(f"View '{view}' must keep {parts} of its images {before}, got {after}.")
        return result

    def each(self, view: str, images: Tensor, seeds: Sequence[int]) -> Tensor:
        """Return a view of each image that depends on the image and its seed alone, not on the rest of the batch.

        seeds: one for each image. The views `weak` and `strong` of this package draw on the CPU, image by image, and
        are made together; others are made one by one.
        """
        own: dict[View, Draw] = {Augmenter.weak: self.draw_weak, Augmenter.strong: self.draw_strong}
        draw = own.get(self.view(view))
        if draw is None:
            generator, pairs = torch.Generator(images.device), zip(images.split(1), seeds, strict=True)
            return torch.cat([self(view, image, generator.manual_seed(seed)) for image, seed in pairs])
        generator, side = torch.Generator(), images.shape[-1]
        parts = zip(*(draw(1, side, generator.manual_seed(seed)) for seed in seeds), strict=True)
        return self.distort(images, *(torch.cat(part, -1).to(images.device) for part in parts))

    def view(self, name: str) -> View:
        """Return the function that makes a view."""
        if name not in self._views:
            self._views[name] = VIEWS.load(name)
        return self._views[name]

    def plain(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return the images unchanged."""
        return images

    def weak(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Shift, and flip horizontally if allowed."""
        return self.distort(images, *self.draw_weak(len(images), images.shape[-1], generator))

    def strong(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Apply the weak view of this package, then RandAugment, then cutout."""
        return self.distort(images, *self.draw_strong(len(images), images.shape[-1], generator))

    def distort(self, images: Tensor, *drawn: Tensor) -> Tensor:
        """Make a weak or strong view. drawn: what `draw_weak` or `draw_strong` returned."""
        images, drawn = shift_and_mirror(images, *drawn[:3]), drawn[3:]
        if not drawn:
            return images
        for op_N, magnitude_N in zip(*drawn[:2], strict=True):
            images = randaugment_round(images, op_N, magnitude_N, self.families, self.settings.interpolation)
        return cut_out(images, *drawn[2:]) if self.settings.cutout > 0 else images

    def large_crop(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Crop to most of the image, resize to its side, flip if allowed, and change colours."""
        crops = self.settings.crops
        return random_crop(images, crops.large_area, images.shape[-1], crops, self.mirror, generator)

    def small_crop(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Crop to a part of the image, resize to a smaller side, flip if allowed, and change colours."""
        crops = self.settings.crops
        side = side_of_small(images.shape[-1], crops)
        return random_crop(images, crops.small_area, side, crops, self.mirror, generator)

    def draw_weak(self, count: int, side: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw uniform shifts down and right, each in [−s, s], and whether to flip; each (N,)."""
        most = min(round(self.settings.shift * side), side - 1)
        down_N, right_N = torch.randint(-most, most + 1, (2, count), generator=generator, device=generator.device)
        return down_N, right_N, uniform((count,), generator) < self.mirror / 2

    def draw_strong(self, count: int, side: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw a weak view, then the operations, then the squares; images are the last dimension of each tensor."""
        weak, operations = self.draw_weak(count, side, generator), self.draw_operations(count, generator)
        square = self.draw_square(count, side, generator) if self.settings.cutout > 0 else ()
        return *weak, *operations, *square

    def draw_operations(self, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw the numbers of operations and their magnitudes, both (R, N)."""
        shape, device = (self.rounds, count), generator.device
        chosen_RN = torch.randint(len(self.settings.ops), shape, generator=generator, device=device)
        op_RN, start_RN, end_RN, sign_RN = self._pool(device)[:, chosen_RN]
        if self.discrete:
            position_RN = torch.randint(1, 10, shape, generator=generator, device=device) / 10
            op_RN = torch.where(uniform(shape, generator) < 0.5, op_RN, INDEX["identity"])
        else:
            position_RN = uniform(shape, generator)
        magnitude_RN = torch.lerp(start_RN, end_RN, position_RN)
        return op_RN.long(), torch.where(uniform(shape, generator) < 0.5, magnitude_RN, sign_RN * magnitude_RN)

    def draw_square(self, count: int, side: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Draw top, left and side of squares with centres uniform over the image; whole numbers, each (N,)."""
        down_N, right_N, share_N = uniform((3, count), generator)
        if self.discrete:
            share_N = torch.ones_like(share_N)
        side_N = (share_N * (self.settings.cutout * side)).round()
        top_N, left_N = ((centre * side - side_N / 2 + 0.5).floor() for centre in (down_N, right_N))
        return top_N, left_N, side_N

    def _pool(self, device: torch.device) -> Tensor:
        """Return number, both ends of the magnitude and possible sign of every operation of the pool; (4, P).

        Cached per device: a CUDA graph cannot capture a copy from the host.
        """
        if device not in self._pools:
            rows = []
            for name in self.settings.ops:
                operation = OPERATIONS[name]
                ends = operation.discrete if self.discrete else operation.continuous
                rows.append((INDEX[name], *ends, -1 if operation.family == "geometric" else 1))
            self._pools[device] = torch.tensor(rows, dtype=torch.float32).T.contiguous().to(device)
        return self._pools[device]
