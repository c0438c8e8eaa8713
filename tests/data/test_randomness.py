import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.data.randomness import Use, bits, permutations, shuffled

SEEDS = st.integers(0, 2**70)


@given(seed=SEEDS, count=st.integers(1, 5), length=st.integers(1, 30))
def test_every_row_is_a_permutation(seed, count, length):
    rows = permutations(bits(seed, Use.STREAM), count, length)
    np.testing.assert_array_equal(np.sort(rows, axis=1), np.tile(np.arange(length), (count, 1)))


def test_every_permutation_is_equally_likely():
    rows = permutations(bits(0, Use.STREAM), 60_000, 3)
    _, counts = np.unique(rows @ np.array([9, 3, 1]), return_counts=True)
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 500  # more than five standard deviations


@given(seed=SEEDS, block=st.integers(0, 2**40))
def test_seed_use_and_key_all_change_the_numbers_independently(seed, block):
    keys: list[tuple[int, ...]] = [
        (seed, Use.LABELS, block),
        (seed, Use.NOISE, block),
        (seed + 1, Use.LABELS, block),
        (seed, Use.LABELS, block + 1),
        (seed, Use.LABELS),
        (seed, Use.LABELS, block, 0),
        (seed + (1 << 32), Use.LABELS, block),
    ]
    assert len({bits(key[0], Use(key[1]), *key[2:]).random_raw(1)[0] for key in keys}) == len(keys)


def test_the_numbers_are_the_same_on_every_machine_and_release():
    assert permutations(bits(0, Use.STREAM, 0), 2, 6).tolist() == [[1, 3, 0, 5, 4, 2], [5, 0, 3, 1, 4, 2]]


def test_shuffling_keeps_the_items():
    items = np.array([5, 5, 9, -1])
    assert sorted(shuffled(items, bits(3, Use.NOISE)).tolist()) == [-1, 5, 5, 9]
    assert shuffled(items[:0], bits(3, Use.NOISE)).tolist() == []
