"""Section `views` of the configuration, and the operations of RandAugment that it can name."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from aggmatch.config import Count, Fraction, Natural, Range, Settings
from aggmatch.validate import InvalidValue

Family = Literal["geometric", "table", "blend", "none"]
Interpolation = Literal["nearest", "bilinear"]


@dataclass(frozen=True)
class Operation:
    """An operation of RandAugment: its family, and the range of its magnitude in both modes.

    Units: degrees (rotate), pixels per pixel (shear), share of the side (translate), bits kept (posterize), lowest
    inverted grey value (solarize), factor (blends). Geometric magnitudes get a random sign.
    """

    family: Family
    discrete: tuple[float, float] = (0, 0)
    """Magnitudes at level 0 and at level 10; levels 1 to 9 are drawn."""
    continuous: tuple[float, float] = (0, 0)
    """Smallest and largest magnitude; values between them are drawn."""


OPERATIONS: dict[str, Operation] = {
    "auto_contrast": Operation("table"),
    "brightness": Operation("blend", discrete=(0.1, 1.9), continuous=(0.05, 0.95)),
    "color": Operation("blend", discrete=(0.1, 1.9), continuous=(0.05, 0.95)),
    "contrast": Operation("blend", discrete=(0.1, 1.9), continuous=(0.05, 0.95)),
    "equalize": Operation("table"),
    "identity": Operation("none"),
    # Rounded down to whole bits: 4.9 − 0.4 L keeps 4 − ⌊0.4 L⌋ bits, as in the original, and never 0.
    "posterize": Operation("table", discrete=(4.9, 0.9), continuous=(4, 8)),
    "rotate": Operation("geometric", discrete=(0, 30), continuous=(0, 30)),
    "sharpness": Operation("blend", discrete=(0.1, 1.9), continuous=(0.05, 0.95)),
    "shear_x": Operation("geometric", discrete=(0, 0.3), continuous=(0, 0.3)),
    "shear_y": Operation("geometric", discrete=(0, 0.3), continuous=(0, 0.3)),
    "solarize": Operation("table", discrete=(256, 0), continuous=(0, 256)),
    "translate_x": Operation("geometric", discrete=(0, 10 / 32), continuous=(0, 0.3)),  # L pixels of CIFAR's 32
    "translate_y": Operation("geometric", discrete=(0, 10 / 32), continuous=(0, 0.3)),
}


@dataclass(frozen=True, kw_only=True)
class CropSettings(Settings):
    """Section `views.crops`: large and small crops. The defaults are those of PAWS for CIFAR-10."""

    large_area: tuple[Fraction, ...] = (0.75, 1.0)
    """Smallest and largest share of the image's area in a large crop, which is resized to the side of the image."""
    small_area: tuple[Fraction, ...] = (0.3, 0.75)
    """Smallest and largest share of the image's area in a small crop."""
    small_side: Fraction = 18 / 32
    """Side of a small crop as a share of the image's side; rounded to whole pixels, at least 4."""
    jitter: Fraction = 0.4
    """Brightness, contrast and saturation change by factors from 1 − jitter to 1 + jitter, in random order."""
    hue: Annotated[float, Range(0, 0.5)] = 0.0
    """The hue of colour images turns by up to this share of the colour circle, in random order with the others."""
    jittered: Fraction = 0.8
    """Share of the crops with colour jitter."""
    grey: Fraction = 0.0
    """Share of the crops of colour images that lose their colours."""
    solarized: Fraction = 0.2
    """Share of the crops in which grey values above a random threshold are inverted."""
    equalized: Fraction = 0.2
    """Share of the crops with an equalized histogram."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("large_area", "small_area"):
            ends = getattr(self, name)
            if len(ends) != 2 or not 0 < ends[0] <= ends[1]:
                raise InvalidValue(name, f"must be two shares above 0, the smaller first, got {list(ends)}")


@dataclass(frozen=True, kw_only=True)
class ViewSettings(Settings):
    """Section `views`: how views are made. Example: `ViewSettings(strong="my_views.py:noisy", cutout=0.25)`."""

    weak: str = "weak"
    """View that methods get as `weak`: one of `aggmatch list views`, or `path/to/file.py:Name`."""
    strong: str = "strong"
    """View that methods get as `strong`."""
    flip: bool | None = None
    """Whether half of the images are flipped horizontally. None: if that preserves the classes of the data set."""
    shift: Fraction = 0.125
    """Largest shift of the weak view as a share of the side, with reflected borders: 4 pixels of 32."""
    randaugment: Literal["discrete", "continuous"] = "continuous"
    """discrete: integer levels, each round applied with probability ½. continuous: magnitudes from ranges, always."""
    ops: tuple[str, ...] = tuple(OPERATIONS)
    """Operations from which every round draws one per image, with replacement."""
    rounds: Natural | None = None
    """Operations per image. None: 2 if discrete, 3 if continuous."""
    cutout: Fraction = 0.5
    """Side of the grey square as a share of the image's side; if continuous, the largest side. 0 switches it off."""
    interpolation: Interpolation = "nearest"
    """How rotation, shear and translation sample pixels; bilinear suits very small images."""
    cached: Count = 4
    """With a frozen backbone, views of each kind and image whose features are computed and cached."""
    feature_dropout: Annotated[float, Range(0, 0.95)] = 0.5
    """With a frozen backbone, share of the features that a strong view loses, at random in each step."""
    crops: CropSettings = field(default_factory=CropSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.ops:
            raise InvalidValue("ops", "must name at least one operation, got none")
        for name in self.ops:
            if name not in OPERATIONS:
                raise InvalidValue("ops", f"must hold names among {', '.join(OPERATIONS)}, got {name!r}")
