from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.images import BLEND, SIDES, check_replays, distinct, seeded, some_images
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from aggmatch.augment.crops import side_of_small
from aggmatch.augment.randaugment import INDEX
from aggmatch.augment.settings import OPERATIONS, CropSettings, ViewSettings
from aggmatch.augment.views import GREY, VIEWS, Augmenter, cut_out, shift_and_mirror
from aggmatch.config import describe
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue


def asymmetric(count: int, side: int, channels: int = 1) -> Tensor:
    """`count` copies of an image in which all pixels differ from their neighbours."""
    image = torch.randperm(side * side, generator=seeded()).view(1, 1, side, side) % 251
    return image.to(torch.uint8).expand(count, channels, side, side).contiguous()


def shape_of(view: str, images: Tensor) -> tuple[int, ...]:
    side = images.shape[-1]
    side = side_of_small(side, CropSettings()) if view == "small_crop" else side
    return (*images.shape[:2], side, side)


# Draws -------------------------------------------------------------------------------------------------------------


def drawn(randaugment: str, count: int = 60_000) -> dict[str, Tensor]:
    """Magnitudes by name of operation."""
    augmenter = Augmenter(ViewSettings(randaugment=randaugment, rounds=1), mirror=True)  # type: ignore[arg-type]
    op_RN, magnitude_RN = augmenter.draw_operations(count, seeded())
    return {name: magnitude_RN[op_RN == INDEX[name]] for name in OPERATIONS}


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        *((name, 0.05, 0.95) for name in BLEND),
        ("posterize", 4, 8),
        ("solarize", 0, 256),
        ("rotate", -30, 30),
        ("shear_x", -0.3, 0.3),
        ("shear_y", -0.3, 0.3),
        ("translate_x", -0.3, 0.3),
        ("translate_y", -0.3, 0.3),
    ],
)
def test_continuous_magnitudes_fill_their_range_evenly(name, low, high):
    position = (drawn("continuous")[name] - low) / (high - low)
    assert 0 <= position.min() < 0.005
    assert 0.995 < position.max() <= 1
    assert position.mean() == pytest.approx(0.5, abs=0.03)
    assert position.var() == pytest.approx(1 / 12, abs=0.01)


@pytest.mark.parametrize(
    ("name", "magnitudes"),
    [
        *((name, [0.1 + 0.18 * level for level in range(1, 10)]) for name in BLEND),
        ("solarize", [256 - 25.6 * level for level in range(1, 10)]),
        ("rotate", [sign * 3 * level for level in range(1, 10) for sign in (-1, 1)]),
        *(
            (name, [sign * 0.03 * level for level in range(1, 10) for sign in (-1, 1)])
            for name in ("shear_x", "shear_y")
        ),
        *(
            (name, [sign * level / 32 for level in range(1, 10) for sign in (-1, 1)])
            for name in ("translate_x", "translate_y")
        ),
    ],
)
def test_discrete_magnitudes_are_those_of_levels_1_to_9(name, magnitudes):
    values = drawn("discrete")[name].unique()
    assert values.tolist() == pytest.approx(sorted(magnitudes), abs=1e-5)


def test_discrete_posterize_keeps_1_to_4_bits_as_often_as_the_original():
    bits = Counter(drawn("discrete")["posterize"].int().tolist())
    original = Counter(4 - int(0.4 * level) for level in range(1, 10))
    assert bits.keys() == original.keys() == {1, 2, 3, 4}
    for bit, levels in original.items():
        assert bits[bit] / bits.total() == pytest.approx(levels / 9, abs=0.05)


def test_every_operation_of_the_pool_is_equally_likely():
    counts = {name: len(magnitudes) for name, magnitudes in drawn("continuous").items()}
    assert list(counts.values()) == pytest.approx([60_000 / 14] * 14, abs=5 * (60_000 / 14) ** 0.5)


def test_a_discrete_round_is_applied_half_of_the_time():
    counts = {name: len(magnitudes) for name, magnitudes in drawn("discrete").items()}
    assert counts.pop("identity") == pytest.approx(60_000 * (0.5 + 0.5 / 14), rel=0.02)
    assert list(counts.values()) == pytest.approx([60_000 / 28] * 13, abs=5 * (60_000 / 28) ** 0.5)


def test_only_operations_of_the_pool_are_drawn():
    augmenter = Augmenter(ViewSettings(ops=("rotate", "solarize")), mirror=True)
    op_RN, _ = augmenter.draw_operations(500, seeded())
    assert set(op_RN.flatten().tolist()) == {INDEX["rotate"], INDEX["solarize"]}


@pytest.mark.parametrize(("randaugment", "rounds"), [("discrete", 2), ("continuous", 3)])
def test_rounds_follow_the_setting_unless_given(randaugment, rounds):
    for given_rounds, expected in ((None, rounds), (0, 0), (5, 5)):
        augmenter = Augmenter(ViewSettings(randaugment=randaugment, rounds=given_rounds), mirror=True)
        op_RN, magnitude_RN = augmenter.draw_operations(7, seeded())
        assert op_RN.shape == magnitude_RN.shape == (expected, 7)


def test_images_of_a_batch_and_rounds_draw_independently():
    op_RN, magnitude_RN = Augmenter(ViewSettings(), mirror=True).draw_operations(200, seeded())
    assert all(len(row.unique()) == 14 for row in op_RN)
    assert not torch.equal(op_RN[0], op_RN[1])
    rotations = magnitude_RN[op_RN == INDEX["rotate"]]
    assert len(rotations.unique()) == len(rotations)


def test_identical_images_get_different_magnitudes():
    augmenter = Augmenter(ViewSettings(ops=("brightness",), rounds=1, shift=0, cutout=0), mirror=False)
    assert distinct(augmenter("strong", asymmetric(50, 32), seeded())) == 50


def test_identical_images_get_different_operations():
    pool = ("auto_contrast", "equalize", "identity")
    augmenter = Augmenter(ViewSettings(ops=pool, rounds=1, shift=0, cutout=0), mirror=False)
    assert distinct(augmenter("strong", asymmetric(50, 32), seeded())) == 3


# Views -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["weak", "strong"])
@pytest.mark.parametrize("randaugment", ["discrete", "continuous"])
def test_the_seed_determines_the_view(view, randaugment):
    images, augmenter = some_images(32, 3), Augmenter(ViewSettings(randaugment=randaugment), mirror=True)
    first = augmenter(view, images, seeded(1))
    torch.rand(3)  # the global generator must not matter
    assert torch.equal(first, augmenter(view, images, seeded(1)))
    assert not torch.equal(first, augmenter(view, images, seeded(2)))


@pytest.mark.parametrize("view", VIEWS.names())
def test_views_do_not_change_their_input(view):
    images = some_images(32, 3)
    before = images.clone()
    Augmenter(ViewSettings(), mirror=True)(view, images, seeded())
    assert torch.equal(images, before)


def test_the_plain_view_is_the_image_itself():
    images = some_images(32, 3)
    assert torch.equal(Augmenter(ViewSettings(), mirror=True)("plain", images, seeded()), images)


def test_the_weak_view_without_shift_and_flip_is_the_identity():
    images = some_images(33, 3)
    assert torch.equal(Augmenter(ViewSettings(shift=0, flip=False), mirror=True)("weak", images, seeded()), images)


@pytest.mark.parametrize(
    ("side", "shift", "pixels", "count"), [(8, 0.125, 1, 400), (32, 0.125, 4, 3000), (8, 0.375, 3, 3000)]
)
@pytest.mark.parametrize("mirror", [True, False])
def test_the_weak_view_is_a_crop_of_the_reflect_padded_image(side, shift, pixels, count, mirror):
    images = asymmetric(count, side)
    padded = np.pad(images[0, 0].numpy(), pixels, mode="reflect")
    crops = [padded[i : i + side, j : j + side] for i in range(2 * pixels + 1) for j in range(2 * pixels + 1)]
    candidates = {crop.tobytes() for crop in crops} | ({crop[:, ::-1].tobytes() for crop in crops} if mirror else set())
    assert len(candidates) == (2 * pixels + 1) ** 2 * (1 + mirror)
    views = Augmenter(ViewSettings(shift=shift), mirror=mirror)("weak", images, seeded())
    assert {view.numpy().tobytes() for view in views} == candidates


def test_the_largest_shift_is_one_less_than_the_side():
    down_N, right_N, _ = Augmenter(ViewSettings(shift=1), mirror=True).draw_weak(2000, 8, seeded())
    assert set(down_N.tolist()) == set(right_N.tolist()) == set(range(-7, 8))


def test_a_shift_moves_the_image_down_and_right_before_the_flip():
    image = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3)
    down, right = torch.tensor([1]), torch.tensor([0])
    assert shift_and_mirror(image, down, right, torch.tensor([False])).tolist() == [[[[3, 4, 5], [0, 1, 2], [3, 4, 5]]]]
    assert shift_and_mirror(image, right, down, torch.tensor([False])).tolist() == [[[[1, 0, 1], [4, 3, 4], [7, 6, 7]]]]
    assert shift_and_mirror(image, right, right, torch.tensor([True])).tolist() == [[[[2, 1, 0], [5, 4, 3], [8, 7, 6]]]]


@pytest.mark.parametrize(
    ("flip", "mirror", "flips"), [(None, True, 1), (None, False, 0), (True, False, 1), (False, True, 0)]
)
def test_half_of_the_images_are_flipped_and_none_if_not_allowed(flip, mirror, flips):
    images = asymmetric(1000, 8)
    out = Augmenter(ViewSettings(flip=flip, shift=0), mirror=mirror)("weak", images, seeded())
    mirrored_N = (out == images.flip(3)).flatten(1).all(1)
    assert mirrored_N.float().mean() == pytest.approx(flips / 2, abs=0.05 * flips)
    assert torch.equal(out[~mirrored_N], images[~mirrored_N])


def squares(randaugment: str, side: int, count: int = 1000, share: float = 0.5) -> Tensor:
    """Return the pixels that cutout painted, (N, H, W)."""
    choice = ViewSettings(randaugment=randaugment, ops=("identity",), shift=0, cutout=share)  # type: ignore[arg-type]
    out = Augmenter(choice, mirror=False)("strong", torch.zeros(count, 3, side, side, dtype=torch.uint8), seeded())
    assert set(out.unique().tolist()) <= {0, GREY}
    assert (out == out[:, :1]).all()
    return out[:, 0] == GREY


@pytest.mark.parametrize("side", SIDES)
def test_discrete_cutout_paints_grey_squares_of_half_the_side_clipped_at_the_border(side):
    painted_NHW = squares("discrete", side)
    full = round(side / 2)
    for lines_NL in (painted_NHW.any(2), painted_NHW.any(1)):
        length_N, at_border_N = lines_NL.sum(1), lines_NL[:, 0] | lines_NL[:, -1]
        assert (length_N[~at_border_N] == full).all()
        assert length_N.max() == full
        assert length_N.min() <= full // 2 + 1
        assert lines_NL.any(0).all()
        # The centre is uniform, so both borders clip equally often: on average a quarter of half the side is lost.
        assert length_N.float().mean() == pytest.approx(full * (1 - full / side / 4), rel=0.03)
    assert torch.equal(painted_NHW.sum((1, 2)), painted_NHW.any(2).sum(1) * painted_NHW.any(1).sum(1))


def test_continuous_cutout_draws_its_side_up_to_the_largest():
    longest_N = squares("continuous", 32).any(2).sum(1)
    assert set(longest_N.tolist()) == set(range(17))


@pytest.mark.parametrize("randaugment", ["discrete", "continuous"])
def test_cutout_zero_switches_it_off(randaugment):
    assert not squares(randaugment, 32, count=100, share=0).any()


def test_a_square_is_painted_at_its_position():
    images = torch.zeros(2, 1, 4, 4, dtype=torch.uint8)
    out = cut_out(images, torch.tensor([1, -1]), torch.tensor([2, 3]), torch.tensor([2, 3]))
    expected = np.zeros((2, 1, 4, 4), dtype=np.uint8)
    expected[0, 0, 1:3, 2:4] = expected[1, 0, 0:2, 3:] = 127
    assert out.tolist() == expected.tolist()


@settings(deadline=None, max_examples=40)
@given(
    ops=st.lists(st.sampled_from(list(OPERATIONS)), min_size=1, max_size=5),
    side=st.integers(8, 40),
    channels=st.sampled_from([1, 3]),
    count=st.integers(0, 4),
    randaugment=st.sampled_from(["discrete", "continuous"]),
    interpolation=st.sampled_from(["nearest", "bilinear"]),
    shift=st.sampled_from([0, 0.125, 1]),
    view=st.sampled_from(VIEWS.names()),
)
def test_every_view_is_uint8_and_keeps_the_shape_except_small_crops(
    ops, side, channels, count, randaugment, interpolation, shift, view
):
    images = some_images(side, channels)[:count]
    choice = ViewSettings(ops=tuple(ops), randaugment=randaugment, interpolation=interpolation, shift=shift)
    out = Augmenter(choice, mirror=True)(view, images, seeded())
    assert out.dtype == torch.uint8
    assert out.shape == shape_of(view, images)


@pytest.mark.parametrize("view", VIEWS.names())
@pytest.mark.parametrize("randaugment", ["discrete", "continuous"])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_no_view_copies_a_value_to_the_host(view, randaugment, interpolation, monkeypatch):
    monkeypatch.setattr("aggmatch.augment.randaugment.shapes_may_vary", lambda _: False)  # as on a GPU
    augmenter = Augmenter(ViewSettings(randaugment=randaugment, interpolation=interpolation), mirror=True)
    with FakeTensorMode():  # tensors without values: reading a value, or a shape that depends on one, raises an error
        images = torch.zeros(5, 3, 16, 16, dtype=torch.uint8)
        out = augmenter(view, images, seeded())
    assert out.shape == shape_of(view, images)


# Errors ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "images",
    [
        torch.zeros(2, 3, 8, 8),
        *(torch.zeros(shape, dtype=torch.uint8) for shape in ((3, 8, 8), (2, 2, 8, 8), (2, 3, 8, 9))),
    ],
)
@pytest.mark.parametrize("view", VIEWS.names())
def test_images_of_another_type_or_shape_fail(view, images):
    with pytest.raises(
        AggMatchError, match=r"^Images must be uint8 of shape \(N, 1 or 3, side, side\), got .* of shape \("
    ):
        Augmenter(ViewSettings(), mirror=True)(view, images, seeded())


def test_an_unknown_view_fails_and_the_error_suggests_the_closest_name():
    with pytest.raises(AggMatchError, match=r"Unknown view 'stong'. Did you mean 'strong'"):
        Augmenter(ViewSettings(), mirror=True)("stong", some_images(8, 1), seeded())


def test_an_unknown_operation_fails():
    with pytest.raises(InvalidValue, match=r"^ops .*'rotat'"):
        ViewSettings(ops=("rotate", "rotat"))


def test_an_empty_list_of_operations_fails():
    with pytest.raises(InvalidValue, match=r"^ops must name at least one operation"):
        ViewSettings(ops=())


def test_every_setting_is_documented():
    assert all(setting.text for setting in describe(ViewSettings))


# Image by image -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["plain", "weak", "strong", "large_crop", "small_crop"])
@pytest.mark.parametrize("settings", [{}, {"randaugment": "discrete"}, {"cutout": 0.0}], ids=str)
def test_a_view_of_each_image_is_that_of_the_image_alone_with_its_seed(view, settings):
    augmenter, images, seeds = Augmenter(ViewSettings(**settings), mirror=True), some_images(32, 3), [5, 3, 5, 8]
    together = augmenter.each(view, images[:4], seeds)
    alone = [augmenter(view, images[row : row + 1], seeded(seed)) for row, seed in enumerate(seeds)]
    assert torch.equal(together, torch.cat(alone))


def test_views_of_other_code_are_made_one_by_one(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def halves(augmenter, images, generator):\n    return images // len(images) // 2\n")
    augmenter, images = Augmenter(ViewSettings(strong=f"{file}:halves"), mirror=True), some_images(32, 3)[:3]
    assert torch.equal(augmenter.each("strong", images, [1, 2, 3]), images // 2)


# On the GPU --------------------------------------------------------------------------------------------------------

on_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


class TestOnGpu:
    pytestmark = on_gpu

    @pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
    def test_the_gpu_agrees_with_the_cpu_for_the_same_parameters(self, interpolation):
        images = some_images(32, 3)[:5].repeat(100, 1, 1, 1)
        augmenter = Augmenter(ViewSettings(interpolation=interpolation), mirror=True)
        drawn = augmenter.draw_strong(len(images), 32, seeded())

        def view(device: str) -> Tensor:
            return augmenter.distort(images.to(device), *(values.to(device) for values in drawn))

        assert (view("cpu") != view("cuda").cpu()).float().mean() < 0.001

    def test_views_of_each_image_are_those_of_the_cpu(self):
        augmenter, images = Augmenter(ViewSettings(), mirror=True), some_images(32, 3)
        seeds = list(range(len(images)))
        views = [augmenter.each("strong", images.to(device), seeds).cpu() for device in ("cpu", "cuda")]
        assert (views[0] != views[1]).float().mean() < 0.001

    @pytest.mark.parametrize("randaugment", ["discrete", "continuous"])
    def test_a_captured_graph_makes_new_views_on_every_replay(self, randaugment):
        images = some_images(32, 3).cuda()
        augmenter = Augmenter(ViewSettings(randaugment=randaugment), mirror=True)
        check_replays(lambda generator: augmenter("strong", images, generator))
