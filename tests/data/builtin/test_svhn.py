import os

import numpy as np
import pytest
from scipy.io import savemat

from aggmatch.data import load
from aggmatch.errors import AggMatchError

RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (32, 32, 3, 5), dtype=np.uint8)
LABELS = np.array([[10], [1], [9], [10], [2]], np.uint8)


@pytest.fixture
def folder(tmp_path):
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": PIXELS, "y": LABELS}, do_compression=True)
    return tmp_path


def test_label_10_of_svhn_is_the_digit_zero(folder):
    data = load("svhn", folder)
    assert data.train.labels.tolist() == [0, 1, 9, 0, 2]
    assert data.train.pixels.is_contiguous()
    for image in range(5):
        for channel in range(3):
            np.testing.assert_array_equal(data.train.pixels[image, channel].numpy(), PIXELS[:, :, channel, image])
    assert not data.mirror


def test_training_and_test_images_come_from_their_own_files(folder):
    savemat(folder / "test_32x32.mat", {"X": PIXELS[..., :1], "y": [[4]]})
    data = load("svhn", folder)
    assert len(data.train) == 5
    assert data.test.labels.tolist() == [4]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"X": PIXELS}, "it lacks X or y"),
        ({"X": PIXELS.astype(float), "y": LABELS}, "X is float64 of shape (32, 32, 3, 5)"),
        ({"X": PIXELS[:28, :28], "y": LABELS}, "instead of uint8 of shape (32, 32, 3, N)"),
        ({"X": PIXELS, "y": LABELS[:4]}, "it holds 5 images but 4 labels"),
        ({"X": PIXELS, "y": LABELS * 0}, "its labels are not all in [1, 10]"),
        ({"X": PIXELS, "y": LABELS + 0.5}, "its labels are not all in [1, 10]"),
        ({"X": PIXELS, "y": {"a": 1}}, "y is not an array of numbers"),
        ({"X": "text", "y": LABELS}, "X is not an array of numbers"),
        ({"X": PIXELS, "y": np.array([1, "a"], object)}, "y is not an array of numbers"),
    ],
)
def test_an_error_names_the_file_with_wrong_content(folder, content, problem):
    path = folder / "train_32x32.mat"
    savemat(path, content)
    with pytest.raises(AggMatchError) as error:
        load("svhn", folder)
    assert str(error.value).startswith(f"{path} is corrupt (")
    assert problem in str(error.value)


@pytest.mark.parametrize("share", [0, 0.01, 0.3, 0.95])
def test_a_truncated_file_is_corrupt(folder, share):
    path = folder / "test_32x32.mat"
    os.truncate(path, int(share * path.stat().st_size))
    with pytest.raises(AggMatchError) as error:
        load("svhn", folder)
    assert str(error.value).startswith(f"{path} is corrupt (")
    assert str(error.value).endswith("Delete it and download it again.")


def test_a_file_that_is_not_a_mat_file_is_corrupt(folder):
    (folder / "train_32x32.mat").write_bytes(b"<html>" * 100)
    with pytest.raises(AggMatchError, match=r"train_32x32\.mat is corrupt"):
        load("svhn", folder)
