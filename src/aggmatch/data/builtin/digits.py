"""The handwritten digits of scikit-learn: real images, small, and available without a download."""

from pathlib import Path

import numpy as np
import torch

from aggmatch.data.images import Images, Source

DIGIT_NAMES = tuple(map(str, range(10)))
DIGIT_NOISE = {"2": "7", "3": "8", "5": "6", "6": "5", "7": "1"}
"""Digits that look alike: the usual map for MNIST, also used for SVHN."""


def read_digits(_folder: Path) -> tuple[Images, Images]:
    """Return 1,437 training and 360 test images.

    The test set is every fifth image after sorting by class. The original list goes from writer to writer, so the
    test set covers classes and writers evenly, without a seed.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    # 17 grey values, 0 to 16.
    pixels = torch.from_numpy(np.rint(bunch.images * (255 / 16)).astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(bunch.target.astype(np.int64))
    test = torch.zeros(len(labels), dtype=torch.bool)
    test[labels.argsort(stable=True)[::5]] = True
    return Images(pixels[~test], labels[~test]), Images(pixels[test], labels[test])


DIGITS = Source(
    name="digits",
    description="Handwritten digits of 8×8 pixels that come with scikit-learn; needs no download.",
    classes=DIGIT_NAMES,
    shape=(1, 8, 8),
    train_size=1437,
    test_size=360,
    mirror=False,
    read=read_digits,
    noise_map=DIGIT_NOISE,
)
