"""From a name to a data set: the table of known sources, and `load`."""

import os
from collections.abc import Mapping
from pathlib import Path

from aggmatch.data import cifar, digits, svhn
from aggmatch.data.download import Progress, fetch
from aggmatch.data.images import DataSet, Source
from aggmatch.errors import AggMatchError, unknown

SOURCES: Mapping[str, Source] = {
    source.name: source for source in (digits.DIGITS, cifar.CIFAR10, cifar.CIFAR100, svhn.SVHN)
}
"""Every data set known by name. A new one is a module with a `Source`, named here."""


def load(name: str, data_dir: Path, download: bool = False, progress: Progress | None = None) -> DataSet:
    """The data set called `name`, its files read from `data_dir` and fetched into it first if `download`.

    `progress` is told about downloads as `fetch` describes.
    """
    if name not in SOURCES:
        if _is_path(name):
            raise AggMatchError(
                f"Cannot load '{name}': folders of images are not supported yet. Take one of {', '.join(SOURCES)}."
            )
        raise unknown("data set", name, SOURCES, see="aggmatch list data")
    source = SOURCES[name]
    try:
        if download:
            # Also for those already there, which checks them; files that lie unpacked are the user's own.
            for archive in source.archives:
                if not archive.unpacked(data_dir):
                    fetch(archive, data_dir, progress)
        missing = source.missing(data_dir)
    except OSError as error:
        raise AggMatchError(f"Cannot look into {data_dir}: {error.strerror}.") from None
    if missing:
        wanted = " and ".join(archive.wanted(data_dir) for archive in missing)
        origin = " and ".join(archive.url for archive in missing)
        size = sum(archive.size for archive in missing) / 1e6
        raise AggMatchError(
            f"{name} is not in {data_dir}: looked for {wanted}. "
            f"Add --download to fetch {size:.0f} MB from {origin}, or name another folder with --data-dir."
        )
    train, test = source.read(data_dir)
    return DataSet(source.name, train, test, source.classes, source.mirror, source.noise_map)


def _is_path(name: str) -> bool:
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    return any(separator in name for separator in separators) or (bool(name) and Path(name).is_dir())
