"""Images of every kind become the pixels that a network takes."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from aggmatch.errors import AggMatchError
from aggmatch.inference.inputs import InvalidImages, Size, find_range, listed, pixel_batches, size_of


def pixels(images, side=4, channels=1, **options) -> torch.Tensor:
    """All images as one tensor."""
    return torch.cat(list(pixel_batches(listed(images, **options), side, channels)))


def ramp(*shape: int) -> np.ndarray:
    """Bytes that all differ, as far as there are enough."""
    return np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)


def test_channels_are_found_first_or_last():
    last = ramp(2, 4, 4, 3)
    assert torch.equal(pixels(last, channels=3), torch.from_numpy(last).permute(0, 3, 1, 2))
    assert torch.equal(pixels(last.transpose(0, 3, 1, 2), channels=3), pixels(last, channels=3))
    assert torch.equal(pixels(list(last), channels=3), pixels(last, channels=3))
    assert torch.equal(pixels(torch.from_numpy(last), channels=3), pixels(last, channels=3))
    assert torch.equal(pixels(ramp(2, 4, 4)), torch.from_numpy(ramp(2, 1, 4, 4)))


def test_channels_are_last_where_both_could_be():
    image = ramp(1, 3, 3, 3)
    assert torch.equal(pixels(image, side=3, channels=3)[0], torch.from_numpy(image[0]).permute(2, 0, 1))


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.int64, np.uint16, bool])
def test_values_from_0_to_1_are_scaled_to_bytes(kind):
    image = np.zeros((1, 4, 4), dtype=kind)
    image[0, 0, 0] = 1
    assert pixels(image).flatten().tolist() == [255] + [0] * 15


def test_values_from_0_to_255_are_rounded():
    image = np.full((1, 4, 4), 2.6)
    assert pixels(image).unique().tolist() == [3]


def test_bytes_from_0_to_1_are_almost_black():
    assert pixels(np.ones((1, 4, 4), dtype=np.uint8)).unique().tolist() == [1]


def test_a_known_range_is_used_and_values_beyond_it_are_clipped():
    image = np.array([[[-9.0, -1.0], [1.0, 9.0]]])
    assert pixels(image, side=2, value_range=(-1, 1)).flatten().tolist() == [0, 0, 255, 255]


def test_one_range_holds_for_all_arrays_of_a_list():
    assert find_range([np.ones((4, 4)), np.full((4, 4), 9.0)]) == (0, 255)
    assert find_range([np.ones((4, 4)), "photo.jpg"]) == (0, 1)
    assert find_range([]) == (0, 255)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.full((1, 4, 4), -0.5), "got -0.5 to -0.5"),
        (np.full((1, 4, 4), 256), "got 256 to 256"),
        (np.full((1, 4, 4), np.nan), "got nan to nan"),
        (np.zeros((1, 4, 4), dtype="U1"), "must be numbers, got <U1"),
        (np.zeros((4, 4)), r"got \(4, 4\)\. Put one image into a list"),
        (np.zeros((4, 4, 3)), r"got \(4, 4, 3\)\. Put one image into a list"),
        (np.zeros((1, 4, 4, 2)), r"got \(1, 4, 4, 2\)"),
        ([np.zeros((4, 4, 4, 3))], r"\(H, W\), .* got \(4, 4, 4, 3\)"),
        ([None], "Image 0 must be .* got NoneType"),
    ],
)
def test_what_is_not_an_image_is_an_error(images, message):
    with pytest.raises(InvalidImages, match=message):
        pixels(images)


def test_the_first_unreadable_image_is_named(tmp_path):
    good, bad = BytesIO(), tmp_path / "bad.png"
    Image.new("L", (4, 4)).save(good, "PNG")
    bad.write_bytes(b"text")
    with pytest.raises(AggMatchError, match=r"Image 1 \(.*bad\.png\) cannot be read: not a JPEG, PNG"):
        pixels([good.getvalue(), bad, tmp_path / "missing.png"])
    with pytest.raises(ValueError, match=r"Image 1 \(.*missing\.png\) cannot be read: .*No such file"):
        pixels([good.getvalue(), tmp_path / "missing.png"])


def test_other_images_are_cropped_to_their_centre_and_scaled():
    wide = np.zeros((1, 4, 8), dtype=np.uint8)
    wide[:, :, 2:6] = 200
    assert pixels(wide).unique().tolist() == [200]
    assert pixels(np.full((1, 9, 9), 7, dtype=np.uint8), channels=3).shape == (1, 3, 4, 4)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "I;16", "F"])
def test_pil_images_of_every_mode_are_read_as_their_file_is(mode):
    image = Image.new(mode, (6, 6))
    assert pixels(image, channels=3).shape == (1, 3, 4, 4)


def test_a_pil_image_is_turned_as_its_exif_data_say():
    image = Image.fromarray(ramp(4, 4) * 16)
    image.getexif()[0x0112] = 3  # upside down
    assert torch.equal(pixels(image)[0, 0], torch.from_numpy(ramp(4, 4) * 16).flip(0, 1))


def test_size_and_channels_are_known_without_opening_files():
    grey, colour = Image.new("L", (5, 9)), Image.new("RGB", (7, 7))
    assert size_of(listed([grey])) == Size(5, 1)
    assert size_of(listed([grey, colour])) == Size(5, 3)
    assert size_of(listed(np.zeros((2, 6, 4, 1)))) == Size(4, 1)
    assert size_of(listed([grey, "photo.jpg"])) == Size(None, 3)


def test_more_images_than_one_batch_keep_their_order_and_positions(monkeypatch):
    monkeypatch.setattr("aggmatch.inference.inputs.images_at_once", lambda side: 2)
    images = [np.full((4, 4), number, dtype=np.uint8) for number in range(5)]
    assert pixels(images)[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(InvalidImages, match="Image 4 cannot be read"):
        pixels([*images[:4], b"text"])
