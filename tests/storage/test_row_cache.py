"""The cache of rows: any set of names finds the rows of earlier sets."""

from pathlib import Path

import numpy as np
import pytest

from aggmatch.storage.cache import Cache
from aggmatch.storage.row_cache import MOST_PACKS, RowCache


@pytest.fixture
def rows(tmp_path: Path) -> RowCache:
    return RowCache(Cache(tmp_path))


def names(*numbers: int) -> np.ndarray:
    return np.array([number.to_bytes(16) for number in numbers], dtype="V16")


def values(*numbers: int) -> np.ndarray:
    return np.array([[number, -number] for number in numbers], dtype=np.float32)


def test_nothing_is_known_at_first(rows):
    found = rows.lookup("key", names(1, 2))
    assert found.known.tolist() == [False, False]
    found.complete(values(1, 2))
    assert found.rows.tolist() == values(1, 2).tolist()
    assert rows.lookup("key", names()).known.tolist() == []


def test_rows_of_several_sets_are_found_in_the_order_of_the_names(rows):
    rows.store("key", names(9, 4), values(9, 4))
    rows.store("key", names(1, 200), values(1, 200))
    found = rows.lookup("key", names(200, 3, 4, 5, 1))
    assert found.known.tolist() == [True, False, True, False, True]
    found.complete(values(3, 5))
    assert found.rows.tolist() == values(200, 3, 4, 5, 1).tolist()
    assert found.rows.dtype == np.float32
    assert found.known.all()
    assert not rows.lookup("another key", names(9)).known.any()


def test_later_rows_replace_earlier_ones(rows):
    rows.store("key", names(1, 2), values(1, 2))
    rows.store("key", names(2, 3), values(7, 3))
    assert rows.lookup("key", names(1, 2, 3)).rows.tolist() == values(1, 7, 3).tolist()


def test_rows_of_a_lost_pack_are_not_known_and_all_others_are(rows, tmp_path):
    rows.store("key", names(1, 2), values(1, 2))
    before = set(tmp_path.iterdir())
    rows.store("key", names(3), values(3))
    (pack,) = set(tmp_path.iterdir()) - before
    pack.unlink()
    found = rows.lookup("key", names(1, 2, 3))
    assert found.known.tolist() == [True, True, False]
    rows.store("key", names(3), values(3))
    assert rows.lookup("key", names(3, 1)).known.all()


def test_rows_of_many_packs_become_one(rows, monkeypatch):
    for number in range(MOST_PACKS + 1):
        rows.store("key", names(number), values(number))
    everything = range(MOST_PACKS + 1)
    assert rows.lookup("key", names(*everything)).rows.tolist() == values(*everything).tolist()
    asked, lookup = [], Cache.lookup

    def counted(self: Cache, key: str) -> object:
        asked.append(key)
        return lookup(self, key)

    monkeypatch.setattr(Cache, "lookup", counted)
    assert rows.lookup("key", names(*everything)).rows.tolist() == values(*everything).tolist()
    assert len(asked) == 2  # the index and one pack


def test_packs_of_which_no_row_is_left_are_removed(rows, tmp_path):
    rows.store("key", names(1, 2), values(1, 2))
    rows.store("key", names(3), values(3))
    rows.store("key", names(2), values(2))
    assert len(list(tmp_path.iterdir())) == 4, "an index and three packs: the first one still has a row"
    rows.store("key", names(1, 2), values(1, 2))
    rows.store("key", names(1, 2), values(1, 2))
    assert len(list(tmp_path.iterdir())) == 3
    assert rows.lookup("key", names(1, 2, 3)).rows.tolist() == values(1, 2, 3).tolist()


def test_rows_that_cannot_be_written_leave_earlier_ones_as_they_are(rows, tmp_path, monkeypatch):
    for number in range(MOST_PACKS + 1):
        rows.store("key", names(number), values(number))
    before = set(tmp_path.iterdir())

    def full(self: Cache, key: str, arrays: dict[str, np.ndarray]) -> None:
        if "rows" in arrays:  # an index is small and may still fit
            raise OSError(28, "No space left on device")
        write(self, key, arrays)

    write = Cache.write
    monkeypatch.setattr(Cache, "write", full)
    everything = range(MOST_PACKS + 1)
    with pytest.warns(UserWarning, match="No space left"):  # the packs cannot become one
        assert rows.lookup("key", names(*everything)).known.all()
    with pytest.warns(UserWarning, match="No space left"):
        rows.store("key", names(0), values(7))
    monkeypatch.undo()
    assert set(tmp_path.iterdir()) == before
    assert rows.lookup("key", names(*everything)).rows.tolist() == values(*everything).tolist()


def test_a_disk_that_cannot_be_written_costs_a_warning_only(tmp_path):
    file = tmp_path / "file"
    file.touch()
    rows = RowCache(Cache(file))
    with pytest.warns(UserWarning, match="Cannot cache"):
        rows.store("key", names(1), values(1))
    assert not rows.lookup("key", names(1)).known.any()
