"""Random numbers that depend only on a seed and a key: not on global state, other draws or the release of numpy."""

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray


class Use(IntEnum):
    """Purposes of random numbers; two purposes never share numbers of one seed. Never renumber: folds would change."""

    LABELS = 0
    NOISE = 1
    STREAM = 2


def bits(seed: int, use: Use, *key: int) -> np.random.PCG64:
    """Return the source of random bits for one use of a seed.

    The key becomes part of the spawn key, which numpy keeps separate from the seed, however large the seed is.
    """
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(int(use), *key)))


def permutations(source: np.random.PCG64, count: int, length: int) -> NDArray[np.int64]:
    """Return `count` independent permutations of range(length), (count, length).

    They come from raw bits, which are the same in every release of numpy; `Generator.permutation` may change.
    """
    raw = np.asarray(source.random_raw(count * length), dtype=np.uint64).reshape(count, length)
    return raw.argsort(axis=1, kind="stable")


def shuffled(items: NDArray[np.int64], source: np.random.PCG64) -> NDArray[np.int64]:
    """Return the items in random order."""
    return items[permutations(source, 1, len(items)).ravel()]
