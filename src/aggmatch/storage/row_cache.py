"""A cache of rows, each under the name of what it was computed from: any set of names finds the rows of earlier sets.

Rows that were computed together are one entry, a pack; an index says in which pack a row is. Like every cache, it only
saves time: rows of a missing or corrupt entry are computed again.

Shapes: N rows that are wanted, M rows that are known, P packs.
"""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggmatch.storage.cache import Cache, remove

MOST_PACKS = 16
"""Packs that a set of rows may be read from; the rows of more packs are stored again, as one."""

Names = NDArray[np.void]
"""Distinct names, bytes of one length, (N,)."""


@dataclass(eq=False)
class Found:
    """What a cache has of N rows."""

    known: NDArray[np.bool_]
    """Which rows it has, (N,)."""
    rows: NDArray[Any]
    """All N rows, of which only the known ones have a meaning; empty if none is known."""

    def complete(self, computed: NDArray[Any]) -> None:
        """Fill in the rows that are not known. computed: these rows, in order."""
        if not self.known.any():
            self.rows = computed
        else:
            self.rows[~self.known] = computed
        self.known[:] = True


@dataclass(frozen=True)
class RowCache:
    """Rows of arrays by key and name.

    cache: where packs and indices are. If two processes store rows of one key at once, those of one may be lost.

    Example: `found = RowCache(cache).lookup("weak 3", names)`; then compute the rows of `names[~found.known]`, `store`
    them, and give them to `found.complete`.
    """

    cache: Cache

    def lookup(self, key: str, names: Names) -> Found:
        """Return the rows of these distinct names, as far as they are known."""
        found = Found(np.zeros(len(names), dtype=bool), np.empty(0))
        index = self.cache.lookup(key)
        if index is None or not len(index["names"]):
            return found
        at = np.searchsorted(index["names"], names).clip(max=len(index["names"]) - 1)
        listed = index["names"][at] == names
        used = np.unique(index["pack"][at[listed]])
        for number in used:
            pack = self.cache.lookup(pack_key(key, index["packs"][number]))
            if pack is None:
                continue
            member = listed & (index["pack"][at] == number)
            if not found.known.any():
                found.rows = np.empty((len(names), *pack["rows"].shape[1:]), pack["rows"].dtype)
            found.rows[member] = pack["rows"][index["row"][at[member]]]
            found.known |= member
        if len(used) > MOST_PACKS:
            self.store(key, names[found.known], found.rows[found.known])
        return found

    def store(self, key: str, names: Names, rows: NDArray[Any]) -> None:
        """Keep the rows of distinct names as one pack; it replaces earlier rows of the same names.

        Packs of which no row is left are removed. If the rows cannot be written, all earlier ones stay.
        """
        pack = hashlib.blake2b(names.tobytes(), digest_size=16).hexdigest()
        if not self.cache.store(pack_key(key, pack), {"rows": rows}):
            return
        index = {"names": names, "pack": np.zeros(len(names), np.int64), "row": np.arange(len(names))}
        packs, unused, earlier = np.array([pack]), np.array([]), self.cache.lookup(key)
        if earlier is not None:
            kept = ~np.isin(earlier["names"], names)
            used, number = np.unique(earlier["pack"][kept], return_inverse=True)
            packs = np.concatenate([packs, earlier["packs"][used]])
            unused = np.setdiff1d(earlier["packs"], packs)
            older = {"names": earlier["names"][kept], "pack": 1 + number, "row": earlier["row"][kept]}
            index = {name: np.concatenate([index[name], older[name]]) for name in index}
        order = np.argsort(index["names"])
        if self.cache.store(key, {"packs": packs} | {name: array[order] for name, array in index.items()}):
            for each in unused:
                remove(self.cache.path(pack_key(key, each)))


def pack_key(key: str, pack: str) -> str:
    """Return the key of a pack."""
    return f"{key} pack {pack}"
