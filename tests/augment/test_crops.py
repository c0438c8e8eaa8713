import colorsys
import math
import random
from collections import Counter
from itertools import permutations
from typing import Any

import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from tests.augment.images import check_replays, from_pillow, seeded, to_pillow
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aggmatch.augment.crops import (
    cut_and_resize,
    draw_boxes,
    draw_jitter,
    draw_turns,
    recolor,
    resizing,
    side_of_small,
    turn_hue,
    uniform,
    with_hue_turned,
)
from aggmatch.augment.randaugment import INDEX
from aggmatch.augment.settings import CropSettings, ViewSettings
from aggmatch.augment.views import Augmenter
from aggmatch.config import describe
from aggmatch.validate import InvalidValue

CROPS = ("large_crop", "small_crop")
LARGE, SMALL = (0.75, 1.0), (0.3, 0.75)
PLAIN: dict[str, Any] = {"jittered": 0.0, "solarized": 0.0, "equalized": 0.0}


def noise(count: int, channels: int, side: int) -> Tensor:
    return torch.randint(256, (count, channels, side, side), dtype=torch.uint8, generator=seeded(side))


def augmenter(mirror: bool = False, **changes: Any) -> Augmenter:
    return Augmenter(ViewSettings(crops=CropSettings(**changes)), mirror=mirror)


# Resizing ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("side", "out"), [(32, 32), (32, 18), (8, 8), (8, 4), (33, 19), (20, 37)])
def test_a_crop_equals_that_of_pillow_within_one_grey_level(side, out, channels):
    count = 60
    images = noise(count, channels, side)
    box = draw_boxes(count, side, (0.1, 1.0), seeded())
    mirrored_N = torch.arange(count) % 2 == 1
    ours = cut_and_resize(images, *box, mirrored_N, out)
    assert ours.dtype == torch.uint8
    for number, (image, top, left, height, width) in enumerate(zip(images, *box, strict=True)):
        corners = [int(place) for place in (left, top, left + width, top + height)]
        part = to_pillow(image).crop(tuple(corners))  # type: ignore[arg-type]
        expected = from_pillow(part.resize((out, out), Image.Resampling.BILINEAR))
        if mirrored_N[number]:
            expected = expected.flip(2)
        assert (ours[number].int() - expected.int()).abs().max() <= 1


def test_a_crop_of_the_whole_image_at_its_own_side_is_the_identity():
    images = noise(5, 3, 32)
    zero_N, full_N = torch.zeros(5), torch.full((5,), 32.0)
    assert torch.equal(cut_and_resize(images, zero_N, zero_N, full_N, full_N, zero_N > 0, 32), images)


def test_a_white_image_stays_white():
    images = torch.full((50, 1, 32, 32), 255, dtype=torch.uint8)
    for area, side in ((LARGE, 32), (SMALL, 18)):
        box = draw_boxes(50, 32, area, seeded())
        assert (cut_and_resize(images, *box, torch.zeros(50) > 0, side) == 255).all()


def test_weights_of_a_resized_line_equal_a_computation_by_hand():
    # Four pixels from the third one on become two: each takes a triangle of four pixels' width, cut at the box.
    weights = resizing(torch.tensor([2.0]), torch.tensor([4.0]), 8, 2)
    first = torch.tensor([0, 0, 0.75, 0.75, 0.25, 0, 0, 0])
    expected = torch.stack((first / 1.75, first.flip(0) / 1.75))
    torch.testing.assert_close(weights[0], expected)


@pytest.mark.parametrize("out", [4, 18, 32])
def test_weights_sum_to_one_and_stay_within_the_box(out):
    top_N, _, height_N, _ = draw_boxes(200, 32, SMALL, seeded())
    weight_NSH = resizing(top_N, height_N, 32, out)
    torch.testing.assert_close(weight_NSH.sum(2), torch.ones(200, out))
    row = torch.arange(32)
    outside_NH = (row < top_N[:, None]) | (row >= (top_N + height_N)[:, None])
    assert (weight_NSH.amax(1)[outside_NH] == 0).all()


# Boxes -------------------------------------------------------------------------------------------------------------


def boxes_of_torchvision(count: int, side: int, area: tuple[float, float]) -> tuple[float, float]:
    """Share of boxes that are the whole image, and mean area of the others, of its rule drawn one by one."""
    chance = random.Random(0)
    areas = []
    for _ in range(count):
        for _ in range(10):
            target = side * side * chance.uniform(*area)
            aspect = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
            width, height = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
            if 0 < width <= side and 0 < height <= side:
                areas.append(width * height)
                break
        else:
            areas.append(side * side)
    partial = [each for each in areas if each < side * side]
    return 1 - len(partial) / count, sum(partial) / len(partial)


@pytest.mark.parametrize("area", [LARGE, SMALL, (0.98, 1.0)])
@pytest.mark.parametrize("side", [8, 32])
def test_boxes_are_distributed_as_in_torchvision(side, area):
    top_N, left_N, height_N, width_N = draw_boxes(20_000, side, area, seeded())
    for start_N, length_N in ((top_N, height_N), (left_N, width_N)):
        assert start_N.min() == 0
        assert length_N.min() >= 1
        assert (start_N + length_N).max() == side
        assert torch.equal(start_N, start_N.round())
    whole, mean = boxes_of_torchvision(20_000, side, area)
    area_N = height_N * width_N
    partial_N = area_N < side * side
    assert 1 - partial_N.float().mean() == pytest.approx(whole, abs=0.015)
    assert area_N[partial_N].mean() == pytest.approx(mean, rel=0.01)


def test_boxes_have_the_given_share_in_both_orientations():
    _, _, height_N, width_N = draw_boxes(5000, 96, SMALL, seeded())
    share_N = height_N * width_N / 96**2
    assert 0.29 < share_N.min() < 0.31
    assert 0.74 < share_N.max() < 0.76
    aspect_N = (width_N / height_N).log()
    assert aspect_N.mean() == pytest.approx(0, abs=0.01)
    assert aspect_N.max() == pytest.approx(math.log(4 / 3), abs=0.03)
    assert aspect_N.min() == pytest.approx(-math.log(4 / 3), abs=0.03)


def test_boxes_lie_anywhere_in_the_image():
    top_N, left_N, height_N, width_N = draw_boxes(50_000, 8, (0.5, 0.5), seeded())
    square_N = (height_N == 6) & (width_N == 6)
    counts = Counter(zip(top_N[square_N].tolist(), left_N[square_N].tolist(), strict=True))
    assert set(counts) == {(down, right) for down in range(3) for right in range(3)}
    assert max(counts.values()) < 1.15 * min(counts.values())


# Colours -----------------------------------------------------------------------------------------------------------

JITTER = {INDEX["brightness"]: "Brightness", INDEX["contrast"]: "Contrast", INDEX["color"]: "Color"}


def test_every_image_has_its_own_order_of_jitter():
    op_3N, factor_3N = draw_jitter(6000, CropSettings(jittered=1.0), seeded())
    orders = Counter(tuple(order) for order in op_3N.T.tolist())
    assert set(orders) == set(permutations(JITTER))
    assert min(orders.values()) > 850
    assert 0.6 <= factor_3N.min() < 0.601
    assert 1.399 < factor_3N.max() <= 1.4
    assert factor_3N.mean() == pytest.approx(1, abs=0.01)
    assert torch.corrcoef(factor_3N)[0, 1].abs() < 0.05  # factors of their own, too


def test_only_a_share_of_the_images_is_jittered():
    op_3N, _ = draw_jitter(5000, CropSettings(jittered=0.3), seeded())
    assert (op_3N != INDEX["identity"]).all(0).float().mean() == pytest.approx(0.3, abs=0.02)
    assert torch.equal((op_3N != INDEX["identity"]).all(0), (op_3N != INDEX["identity"]).any(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_equals_the_operators_of_pillow_in_sequence(channels):
    settings = CropSettings(jittered=0.8, solarized=0.0, equalized=0.0)
    images = noise(40, channels, 18)
    ours = recolor(images, settings, seeded())
    op_3N, factor_3N = draw_jitter(40, settings, seeded())
    for number, image in enumerate(images):
        expected = to_pillow(image)
        for op, factor in zip(op_3N[:, number].tolist(), factor_3N[:, number].tolist(), strict=True):
            if op in JITTER:
                expected = getattr(ImageEnhance, JITTER[op])(expected).enhance(factor)
        assert (ours[number].int() - from_pillow(expected).int()).abs().max() <= 2  # a rounding in each of the three


def test_a_turned_hue_equals_that_of_the_standard_library_within_one_grey_level():
    images = torch.cat([noise(20, 3, 6), torch.full((1, 3, 6, 6), 77, dtype=torch.uint8)])
    turn_N = torch.linspace(-0.5, 0.5, 21)
    ours = turn_hue(images, turn_N)
    for image, turn, got in zip(images, turn_N.tolist(), ours, strict=True):
        for pixel, turned in zip(image.flatten(1).T.tolist(), got.flatten(1).T.tolist(), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(channel / 255 for channel in pixel))
            expected = colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value)
            assert turned == pytest.approx([255 * channel for channel in expected], abs=0.51)


def test_a_hue_that_does_not_turn_stays_the_same():
    images = noise(20, 3, 6)
    assert torch.equal(turn_hue(images, torch.zeros(20)), images)
    assert torch.equal(with_hue_turned(images, torch.zeros(20)), images)


def test_each_jittered_image_turns_its_hue_once_at_any_of_four_places():
    settings = CropSettings(hue=0.1, jittered=0.5)
    op_3N, _ = draw_jitter(8000, settings, seeded())
    turn_4N = draw_turns(op_3N, settings, seeded(1))
    jittered_N = op_3N[0] != INDEX["identity"]
    assert torch.equal((turn_4N != 0).sum(0) == 1, jittered_N)
    assert (turn_4N != 0).sum(1).min() > 900
    assert turn_4N.abs().max() == pytest.approx(0.1, abs=0.001)
    assert turn_4N.min() < -0.09


def test_hue_changes_colour_images_alone():
    changes: dict[str, Any] = {"jitter": 0.0, "jittered": 1.0, "solarized": 0.0, "equalized": 0.0}
    for channels in (1, 3):
        images = noise(10, channels, 18)
        turned = recolor(images, CropSettings(hue=0.1, **changes), seeded())
        assert torch.equal(turned, images) == (channels == 1)


def test_a_share_of_the_colour_images_becomes_grey():
    images = noise(300, 3, 8)
    changed = recolor(images, CropSettings(grey=0.3, jittered=0.0, solarized=0.0, equalized=0.0), seeded())
    grey_N = (changed == changed[:, :1]).flatten(1).all(1)
    assert grey_N.float().mean() == pytest.approx(0.3, abs=0.1)
    assert torch.equal(changed[~grey_N], images[~grey_N])
    expected = torch.stack([from_pillow(to_pillow(image).convert("L").convert("RGB")) for image in images[grey_N]])
    assert (changed[grey_N].int() - expected.int()).abs().max() <= 1
    single = noise(10, 1, 8)
    assert recolor(single, CropSettings(grey=1.0, jittered=0.0, solarized=0.0, equalized=0.0), seeded()) is single


def test_solarize_and_equalize_equal_pillow_for_their_share_of_the_images():
    images = (noise(200, 3, 32) // 2 + 30).clamp(max=140)
    generator = seeded()
    ours = recolor(images, CropSettings(jittered=0.0, solarized=0.4, equalized=0.3), generator)
    generator = seeded()
    (solarize_N, threshold_N), (equalize_N, _) = (uniform((2, 200), generator) for _ in range(2))
    assert (solarize_N < 0.4).float().mean() == pytest.approx(0.4, abs=0.1)
    assert (equalize_N < 0.3).float().mean() == pytest.approx(0.3, abs=0.1)
    for number, image in enumerate(images):
        expected = to_pillow(image)
        if solarize_N[number] < 0.4:
            expected = ImageOps.solarize(expected, 256 * float(threshold_N[number]))  # type: ignore[arg-type]
        if equalize_N[number] < 0.3:
            expected = ImageOps.equalize(expected)
        assert torch.equal(ours[number], from_pillow(expected))


def test_colours_stay_the_same_if_all_shares_are_zero():
    images = noise(10, 3, 18)
    assert recolor(images, CropSettings(**PLAIN), seeded()) is images
    assert torch.equal(recolor(images, CropSettings(jitter=0.0, solarized=0.0, equalized=0.0), seeded()), images)


# Views -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "small"), [(32, 18), (8, 4), (5, 4), (96, 54)])
@pytest.mark.parametrize("channels", [1, 3])
def test_large_crops_keep_the_side_and_small_crops_are_smaller(side, small, channels):
    images = noise(6, channels, side)
    assert side_of_small(side, CropSettings()) == small
    assert augmenter()("large_crop", images, seeded()).shape == (6, channels, side, side)
    assert augmenter()("small_crop", images, seeded()).shape == (6, channels, small, small)


@pytest.mark.parametrize("view", CROPS)
def test_the_seed_determines_the_crop(view):
    images = noise(20, 3, 32)
    first = augmenter(mirror=True)(view, images, seeded(1))
    torch.rand(3)  # the global generator is not used
    assert torch.equal(first, augmenter(mirror=True)(view, images, seeded(1)))
    assert not torch.equal(first, augmenter(mirror=True)(view, images, seeded(2)))


@pytest.mark.parametrize("view", CROPS)
def test_identical_images_get_different_crops_and_colours(view):
    images = noise(1, 3, 32).expand(100, -1, -1, -1)
    out = augmenter()(view, images, seeded())
    assert len({image.numpy().tobytes() for image in out}) == 100


def test_small_crops_show_less_of_the_image_than_large_ones():
    # Columns of grey values that grow from left to right: the range of a crop is the width that it shows.
    images = torch.arange(0, 256, 8, dtype=torch.uint8).expand(500, 1, 32, 32)
    width = {view: augmenter(**PLAIN)(view, images, seeded()).flatten(1).int().aminmax(dim=1) for view in CROPS}
    large, small = (float((width[view].max - width[view].min).float().mean()) / 248 for view in CROPS)
    assert 0.85 < large < 1
    assert 0.6 < small < 0.8


@pytest.mark.parametrize(("mirror", "share"), [(True, 0.5), (False, 0.0)])
def test_half_of_the_crops_are_flipped_if_a_flip_preserves_the_class(mirror, share):
    images = noise(1, 1, 8).expand(1000, -1, -1, -1)
    out = augmenter(mirror=mirror, large_area=(1.0, 1.0), **PLAIN)("large_crop", images, seeded())
    mirrored_N = (out == images.flip(3)).flatten(1).all(1)
    assert torch.equal(out[~mirrored_N], images[~mirrored_N])
    assert mirrored_N.float().mean() == pytest.approx(share, abs=0.05 * mirror)


@pytest.mark.parametrize("view", CROPS)
@pytest.mark.parametrize(("channels", "side"), [(1, 8), (3, 32)])
def test_no_crop_copies_a_value_to_the_host(view, channels, side, monkeypatch):
    for module in ("randaugment", "crops"):
        monkeypatch.setattr(f"aggmatch.augment.{module}.shapes_may_vary", lambda _: False)  # as on a GPU
    with FakeTensorMode():
        images = torch.zeros(5, channels, side, side, dtype=torch.uint8)
        out = augmenter(mirror=True, hue=0.1)(view, images, seeded())
    assert out.dtype == torch.uint8


# Settings ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("area", [(0.5,), (0.8, 0.3), (0.0, 0.5), (0.1, 0.2, 0.3)])
@pytest.mark.parametrize("name", ["large_area", "small_area"])
def test_areas_that_are_not_an_interval_fail(name, area):
    with pytest.raises(InvalidValue, match=rf"^{name} .*two shares"):
        CropSettings(**{name: area})


def test_every_setting_is_documented():
    assert all(setting.text for setting in describe(CropSettings))


# On the GPU --------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("view", CROPS)
def test_a_captured_graph_makes_new_crops_on_every_replay(view):
    images = noise(20, 3, 32).cuda()
    make = augmenter(mirror=True, hue=0.1, grey=0.2)
    check_replays(lambda generator: make(view, images, generator))
