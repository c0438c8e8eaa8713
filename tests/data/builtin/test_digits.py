import numpy as np
import pytest
from sklearn.datasets import load_digits

from aggmatch.data import load


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return load("digits", tmp_path_factory.mktemp("empty"))


def test_digits_need_no_files_and_have_a_test_split_of_360(digits):
    assert (len(digits.train), len(digits.test)) == (1437, 360)
    assert digits.train.pixels.shape[1:] == (1, 8, 8)


def test_the_test_split_takes_a_fifth_of_every_class(digits):
    train, test = digits.train.labels.bincount(), digits.test.labels.bincount()
    assert ((train + test) * 0.2 - test).abs().max() < 1


def test_training_and_test_images_are_the_whole_set_scaled_to_bytes(digits):
    bunch = load_digits()

    def rows(pixels, labels):
        return sorted([(*image.ravel().tolist(), label) for image, label in zip(pixels, labels, strict=True)])

    # By hand: 8 of 16 is 127.5, which rounds to 128.
    table = np.array([0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255])
    wanted = rows(table[bunch.images.astype(int)], bunch.target.tolist())
    pixels = np.concatenate([digits.train.pixels.numpy(), digits.test.pixels.numpy()])
    assert rows(pixels, digits.train.labels.tolist() + digits.test.labels.tolist()) == wanted


def test_the_split_never_changes(digits):
    assert digits.test.labels[:20].tolist() == [0, 2, 4, 7, 1, 6, 8, 9, 5, 3, 0, 2, 7, 6, 4, 0, 1, 3, 9, 8]
    assert int(digits.test.pixels.long().sum()) == 1782171
