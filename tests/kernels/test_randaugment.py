"""The kernels of the views against the plain form, in Triton's interpreter or compiled on a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.augment.images import seeded, some_images
from tests.interpreter import check_in_interpreter, device, on_gpu, outside, runnable
from tests.kernels.compiled import compiled, compiles
from torch import Tensor

from aggmatch.augment.randaugment import INDEX, kernels_on, randaugment_round
from aggmatch.augment.settings import OPERATIONS, ViewSettings
from aggmatch.augment.views import GREY, Augmenter, cut_out, shift_and_mirror

triton = pytest.importorskip("triton")

SIDES = st.sampled_from([3, 8, 28, 32, 33, 40])
CHANNELS = st.sampled_from([1, 3])


def case_images(side: int, channels: int) -> Tensor:
    """Those of the other tests, and black, white, black and white, and two neighbouring grey values."""
    noise = torch.rand(2, channels, side, side, generator=seeded(side))
    flat = torch.tensor([0, 255]).view(2, 1, 1, 1).expand_as(noise)
    two = torch.stack((255 * (noise[0] < 0.3), 100 + 1 * (noise[1] < 0.5)))
    return torch.cat((some_images(side, channels), flat.to(torch.uint8), two.to(torch.uint8)))


def magnitudes(name: str) -> list[float]:
    """First something in between, then both ends of both settings, and the negatives of geometric ones."""
    operation = OPERATIONS[name]
    ends = (*operation.discrete, *operation.continuous)
    values = [0.37 * min(ends) + 0.63 * max(ends), *ends]
    return list(dict.fromkeys(values + [-value for value in values if operation.family == "geometric"]))


def check_round(images: Tensor, names: list[str], values: list[float], interpolation: str) -> None:
    """One image, operation and magnitude each: the kernel's pixels are those of the plain form on the CPU.

    The tolerance of one grey level on a GPU is for its own sine and cosine in the last of 53 bits, and no more than
    one pixel in a thousand may use it.
    """
    from aggmatch.kernels.randaugment import randaugment_round as fused_round

    op_N = torch.tensor([INDEX[name] for name in names], dtype=torch.long)
    magnitude_N = torch.tensor(values, dtype=torch.float32)
    expected = randaugment_round(images, op_N, magnitude_N, interpolation=interpolation)  # type: ignore[arg-type]
    before, images = images, images.to(device)
    found = fused_round(images, op_N.to(device), magnitude_N.to(device), INDEX, interpolation == "bilinear")
    assert torch.equal(images.cpu(), before)
    assert found.dtype == torch.uint8
    difference = (found.cpu().int() - expected.int()).abs()
    wrong = [(names[n], values[n]) for n in difference.flatten(1).any(1).nonzero()[:, 0].tolist()]
    if on_gpu and wrong:
        assert difference.max() <= 1, wrong
        assert (difference > 0).float().mean() < 0.001, wrong
    else:
        assert not wrong


@runnable
@settings(max_examples=25 if not on_gpu else 300)
@given(
    side=SIDES,
    channels=CHANNELS,
    interpolation=st.sampled_from(["nearest", "bilinear"]),
    rows=st.lists(
        st.tuples(st.sampled_from(list(OPERATIONS)), st.floats(0, 1, width=32), st.booleans(), st.integers(0, 9)),
        max_size=4,
    ),
)
def test_a_round_equals_the_plain_form_for_any_shape(side, channels, interpolation, rows):
    images = case_images(side, channels)[[index for *_, index in rows]]
    values = []
    for name, position, discrete, _ in rows:
        start, end = OPERATIONS[name].discrete if discrete else OPERATIONS[name].continuous
        values.append(start + position * (end - start))
    check_round(images, [name for name, *_ in rows], values, interpolation)


@runnable
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_equals_the_plain_form_at_its_extremes(name, channels):
    values, images = magnitudes(name), case_images(28, channels)
    # The interpreter is slow: every magnitude and every image, not every pair of them.
    count = len(images) * len(values) if on_gpu else max(len(images), len(values))
    chosen = torch.arange(count)
    bilinear = OPERATIONS[name].family == "geometric" and channels == 1
    check_round(
        images[chosen % len(images)],
        [name] * count,
        [values[n * len(values) // count] for n in range(count)],
        "bilinear" if bilinear else "nearest",
    )


@runnable
@pytest.mark.parametrize(("side", "channels"), [(64, 3), (128, 1)] if not on_gpu else [(64, 3), (96, 3), (128, 3)])
def test_a_round_equals_the_plain_form_for_images_of_many_blocks(side, channels):
    names = list(OPERATIONS)
    images = some_images(side, channels)[2].expand(len(names), -1, -1, -1).contiguous()
    check_round(images, names, [magnitudes(name)[0] for name in names], "nearest")


@runnable
def test_a_rotation_hits_pixels_that_float32_would_miss():
    angles = [3.59, 3.78, 10.14, 14.31, 16.78, 21.06, 23.91]
    image = torch.randperm(32 * 32, generator=seeded()).view(1, 1, 32, 32) % 251
    images = image.to(torch.uint8).expand(len(angles), -1, -1, -1).contiguous()
    check_round(images, ["rotate"] * len(angles), angles, "nearest")


@runnable
@settings(max_examples=10 if not on_gpu else 100)
@given(side=SIDES, channels=CHANNELS, data=st.data())
def test_shift_and_cutout_equal_the_plain_form(side, channels, data):
    from aggmatch.kernels import randaugment as kernels

    images = case_images(side, channels)[:3]
    shift = st.lists(st.integers(1 - side, side - 1), min_size=3, max_size=3).map(torch.tensor)
    mirrored = torch.tensor(data.draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    shifts = (data.draw(shift), data.draw(shift), mirrored)
    found = kernels.shift_and_mirror(images.to(device), *(each.to(device) for each in shifts))
    assert torch.equal(found.cpu(), shift_and_mirror(images, *shifts))
    length = st.lists(st.integers(0, side), min_size=3, max_size=3).map(torch.tensor)
    square = (data.draw(shift), data.draw(shift), data.draw(length))
    if data.draw(st.booleans()):
        square = tuple(each.float() for each in square)
    top, left, length_there = (each.to(device) for each in square)
    found = kernels.cut_out(images.to(device), top, left, length_there, GREY)
    assert torch.equal(found.cpu(), cut_out(images, *square))


@runnable
@pytest.mark.skipif(on_gpu, reason="draws on a GPU are other draws")
@pytest.mark.parametrize("choice", [ViewSettings(), ViewSettings(randaugment="discrete", interpolation="bilinear")])
def test_a_strong_view_by_kernels_equals_the_plain_form(choice, monkeypatch):
    from aggmatch.kernels import randaugment as kernels

    images, augmenter = some_images(16, 3), Augmenter(choice, mirror=True)
    expected = augmenter("strong", images, seeded(3))
    for module in ("randaugment", "views"):
        monkeypatch.setattr(f"aggmatch.augment.{module}.kernels_on", lambda device: kernels)
    assert torch.equal(augmenter("strong", images, seeded(3)), expected)


@outside
def test_the_kernels_in_the_interpreter():
    check_in_interpreter(__file__, 37)


# Which form runs ---------------------------------------------------------------------------------------------------


def test_kernels_run_on_cuda_devices_only():
    assert kernels_on("cpu") is None
    kernels = kernels_on("cuda")
    assert kernels is not None
    assert kernels.__name__ == "aggmatch.kernels.randaugment"


def test_without_triton_the_plain_form_runs(monkeypatch):
    monkeypatch.setattr("aggmatch.augment.randaugment.triton_works", lambda: False)
    assert kernels_on.__wrapped__("cuda") is None


# Compiling without a GPU -------------------------------------------------------------------------------------------


@compiles
@pytest.mark.parametrize(("side", "channels", "bilinear"), [(8, 1, True), (32, 3, False), (96, 3, True)])
def test_the_round_compiles_for_a_gpu_without_fused_arithmetic(side, channels, bilinear, tmp_path, monkeypatch):
    from aggmatch.kernels.randaugment import BLOCK, EXACT, WARPS, round_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {name.upper(): number for name, number in INDEX.items() if name != "identity"}
    constants |= {"BILINEAR": bilinear, "C": channels, "SIDE": side, "BLOCK": BLOCK}
    types = {"images": "*u8", "out": "*u8", "op_N": "*i64", "magnitude_N": "*fp32"}
    assembly = compiled(round_kernel, types, constants, num_warps=WARPS, **EXACT)
    # A blend is one product and one sum, and Triton's own quotient of float32 is not right to the last bit.
    assert "mul.rn.f32" in assembly
    assert "fma.rn.f32" not in assembly
    assert "div.full.f32" not in assembly


@compiles
def test_shift_and_cutout_compile_for_a_gpu(tmp_path, monkeypatch):
    from aggmatch.kernels.randaugment import BLOCK, cut_kernel, shift_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants, images = {"C": 3, "SIDE": 28, "BLOCK": BLOCK}, {"images": "*u8", "out": "*u8"}
    assert compiled(shift_kernel, images | {"down_N": "*i64", "right_N": "*i64", "mirrored_N": "*u8"}, constants)
    square = dict.fromkeys(("top_N", "left_N", "side_N"), "*fp32")
    assert compiled(cut_kernel, images | square, {"GREY": GREY} | constants)
