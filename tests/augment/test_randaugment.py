from itertools import product

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from tests.augment.images import BLEND, SIDES, distinct, from_pillow, some_images, to_pillow
from torch import Tensor

from aggmatch.augment.randaugment import INDEX, randaugment_round
from aggmatch.augment.settings import OPERATIONS

GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
TABLE = ("auto_contrast", "equalize", "posterize", "solarize")

MAGNITUDES = {
    "rotate": (-30, -17.3, -0.4, 0, 3, 12.7, 30),
    "shear_x": (-0.3, -0.111, 0, 0.03, 0.27),
    "shear_y": (-0.3, -0.111, 0, 0.03, 0.27),
    "translate_x": (-0.3, -1 / 32, 0, 1 / 32, 0.17, 9 / 32),
    "translate_y": (-0.3, -1 / 32, 0, 1 / 32, 0.17, 9 / 32),
    "posterize": (1, 3.99, 4, 5.5, 7, 8),
    "solarize": (0, 25.6, 100, 128, 255.5, 256),
    "brightness": (0, 0.05, 0.3, 0.95, 1, 1.72),
    "color": (0, 0.05, 0.3, 0.95, 1, 1.72),
    "contrast": (0, 0.05, 0.3, 0.95, 1, 1.72),
    "sharpness": (0, 0.05, 0.3, 0.95, 1, 1.72),
}


def pillow(name: str, image: Image.Image, magnitude: float, resample: Image.Resampling) -> Image.Image:
    pixels = magnitude * image.size[0]
    match name:
        case "auto_contrast":
            return ImageOps.autocontrast(image)
        case "equalize":
            return ImageOps.equalize(image)
        case "posterize":
            return ImageOps.posterize(image, int(magnitude))
        case "solarize":
            return ImageOps.solarize(image, magnitude)  # type: ignore[arg-type]
        case "rotate":
            return image.rotate(magnitude, resample)
        case "brightness" | "color" | "contrast" | "sharpness":
            enhancer: ImageEnhance._Enhance = getattr(ImageEnhance, name.capitalize())(image)
            return enhancer.enhance(magnitude)
    matrix = {
        "shear_x": (1, magnitude, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, magnitude, 1, 0),
        "translate_x": (1, 0, pixels, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, pixels),
    }[name]
    return image.transform(image.size, Image.Transform.AFFINE, matrix, resample)


def both(name: str, side: int, channels: int, interpolation: str = "nearest") -> tuple[Tensor, Tensor]:
    """Every image at every magnitude: (ours, Pillow's), as integers wide enough to subtract."""
    pairs = list(product(some_images(side, channels), torch.tensor(MAGNITUDES.get(name, (0,))).tolist()))
    images = torch.stack([image for image, _ in pairs])
    magnitude_N = torch.tensor([magnitude for _, magnitude in pairs])
    ours = randaugment_round(images, torch.full((len(pairs),), INDEX[name]), magnitude_N, interpolation=interpolation)  # type: ignore[arg-type]
    resample = Image.Resampling[interpolation.upper()]
    theirs = [from_pillow(pillow(name, to_pillow(image), magnitude, resample)) for image, magnitude in pairs]
    return ours.int(), torch.stack(theirs).int()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", [*TABLE, *GEOMETRIC])
def test_table_and_geometric_operations_equal_pillow(name, side, channels):
    ours, theirs = both(name, side, channels)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", BLEND)
def test_blend_operations_equal_pillow(name, side, channels):
    ours, theirs = both(name, side, channels)
    difference = (ours - theirs).abs()
    assert difference.max() <= 1  # a compiler that fuses Pillow's multiply and add truncates a few pixels elsewhere
    assert (difference > 0).float().mean() < 0.001


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("name", GEOMETRIC)
def test_bilinear_geometric_operations_equal_pillow_within_one_grey_level(name, side, channels):
    ours, theirs = both(name, side, channels, "bilinear")
    assert (ours - theirs).abs().max() <= 1


def test_identity_changes_nothing():
    images = some_images(32, 3)
    op_N, magnitude_N = torch.full((len(images),), INDEX["identity"]), torch.rand(len(images))
    assert torch.equal(randaugment_round(images, op_N, magnitude_N), images)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_pass_through_the_other_families_unchanged(name, interpolation):
    images = some_images(32, 3)
    others = {operation.family for operation in OPERATIONS.values()} - {OPERATIONS[name].family}
    op_N, magnitude_N = torch.full((len(images),), INDEX[name]), torch.linspace(0.1, 5, len(images))
    assert torch.equal(randaugment_round(images, op_N, magnitude_N, others, interpolation), images)


def test_the_result_of_an_image_does_not_depend_on_the_rest_of_the_batch():
    images = some_images(32, 3)[1].expand(14, -1, -1, -1).contiguous()
    op_N = torch.arange(14)
    magnitude_N = torch.tensor([MAGNITUDES.get(name, (0, 0))[1] for name in OPERATIONS])
    together = randaugment_round(images, op_N, magnitude_N)
    alone = [randaugment_round(images[i : i + 1], op_N[i : i + 1], magnitude_N[i : i + 1]) for i in range(14)]
    assert torch.equal(together, torch.cat(alone))
    assert distinct(together) == 14


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_families_give_the_same_pixels_on_their_own_images_and_on_the_whole_batch(monkeypatch, interpolation):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (60, 3, 17, 17), dtype=torch.uint8, generator=generator)
    op_N = torch.arange(60) % len(OPERATIONS)
    magnitude_N = torch.stack([torch.tensor(list(OPERATIONS.values())[op].continuous).float().mean() for op in op_N])
    grouped = randaugment_round(images, op_N, magnitude_N, interpolation=interpolation)
    monkeypatch.setattr("aggmatch.augment.randaugment.shapes_may_vary", lambda _: False)
    assert torch.equal(randaugment_round(images, op_N, magnitude_N, interpolation=interpolation), grouped)
    assert not torch.equal(grouped, images)
