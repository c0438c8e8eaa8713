"""SVHN, house numbers in street photographs: the official cropped digits, without the extra set."""

from pathlib import Path

import numpy as np
import torch

from aggmatch.data.builtin.digits import DIGIT_NAMES, DIGIT_NOISE
from aggmatch.data.builtin.matlab import read_arrays
from aggmatch.data.images import Archive, Images, Source, corrupt, reading

SHAPE = (3, 32, 32)
HOME = "http://ufldl.stanford.edu/housenumbers/"

TRAIN = Archive("train_32x32.mat", HOME + "train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794)
TEST = Archive("test_32x32.mat", HOME + "test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64_275_384)


MOST = 100_000
"""Most images of a file that are read; the official files hold fewer."""


def read_svhn(folder: Path) -> tuple[Images, Images]:
    """Return training and test images."""
    return _read_mat(folder / TRAIN.file), _read_mat(folder / TEST.file)


def _read_mat(path: Path) -> Images:
    """Read one official file: X is uint8 of shape (H, W, C, N), y is (N, 1) with 10 for the digit 0."""
    channels, height, width = SHAPE
    with reading(path), path.open("rb") as file:
        content = read_arrays(file, ("X", "y"), limit=MOST * channels * height * width)
        if "X" not in content or "y" not in content:
            raise corrupt(path, "it lacks X or y")
        pixels, labels = content["X"], content["y"].reshape(-1)
        if pixels.dtype != np.uint8 or pixels.ndim != 4 or pixels.shape[:3] != (height, width, channels):
            wanted = f"uint8 of shape ({height}, {width}, {channels}, N)"
            raise corrupt(path, f"X is {pixels.dtype} of shape {pixels.shape} instead of {wanted}")
        if len(labels) != pixels.shape[3]:
            raise corrupt(path, f"it holds {pixels.shape[3]} images but {len(labels)} labels")
        if not np.isin(labels, np.arange(1, 11)).all():
            raise corrupt(path, "its labels are not all in [1, 10]")
    return Images(
        torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))),
        torch.from_numpy(labels.astype(np.int64) % 10),
    )


SVHN = Source(
    name="svhn",
    description="SVHN: digits of house numbers, 32×32 pixels, without the extra set.",
    classes=DIGIT_NAMES,
    shape=SHAPE,
    train_size=73_257,
    test_size=26_032,
    mirror=False,
    read=read_svhn,
    archives=(TRAIN, TEST),
    noise_map=DIGIT_NOISE,
)
