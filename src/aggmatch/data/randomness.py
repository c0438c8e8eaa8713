"""Random numbers that depend on their key alone: not on global state, not on each other, not on numpy's release."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Use(IntEnum):
    """What random numbers are for, so that no two uses of one seed share them. Never renumber: folds would change."""

    LABELS = 0
    NOISE = 1
    STREAM = 2


def bits(seed: int, use: Use, *key: int) -> np.random.PCG64:
    """The source of random bits for one use of a seed.

    The key goes into the spawn key, which numpy keeps apart from the seed however large that is.
    """
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(int(use), *key)))


def permutations(source: np.random.PCG64, count: int, length: int) -> NDArray[np.int64]:
    """`count` independent permutations of range(length), one in each row.

    From raw bits: these are the same in every release of numpy, which `Generator.permutation` does not promise.
    """
    raw = np.asarray(source.random_raw(count * length), dtype=np.uint64).reshape(count, length)
    order: NDArray[np.int64] = raw.argsort(axis=1, kind="stable")
    return order


def shuffled(items: NDArray[np.int64], source: np.random.PCG64) -> NDArray[np.int64]:
    """The items in random order."""
    return items[permutations(source, 1, len(items)).ravel()]
