"""From a name to a data set: the table of known sources, and `load`."""

import os
from collections.abc import Mapping
from pathlib import Path

from aggmatch.data import cifar, digits, svhn
from aggmatch.data.download import Progress, fetch
from aggmatch.data.folder import read_folder
from aggmatch.data.images import DataSet, Source
from aggmatch.data.splits import DataSettings
from aggmatch.errors import AggMatchError, unknown

SOURCES: Mapping[str, Source] = {
    source.name: source for source in (digits.DIGITS, cifar.CIFAR10, cifar.CIFAR100, svhn.SVHN)
}
"""Every data set known by name. A new one is a module with a `Source`, named here."""


def is_folder(name: str) -> bool:
    """Whether a data set is a folder of images: no known name, and either a folder that exists or surely a path."""
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    path_like = any(separator in name for separator in separators) or (bool(name) and Path(name).is_dir())
    return name not in SOURCES and path_like


def locate(name: str) -> str:
    """A data set as a run remembers it: a folder by its whole path, so that the run can go on from anywhere."""
    return str(Path(name).resolve()) if is_folder(name) else name


def load_for(settings: DataSettings, data_dir: str, download: bool = False) -> DataSet:
    """The data set that the settings of a run name."""
    return load(settings.name, data_dir, download, side=settings.side, holdout=settings.holdout)


def load(
    name: str,
    data_dir: str | Path = "data",
    download: bool = False,
    progress: Progress | None = None,
    *,
    side: int = DataSettings.side,
    holdout: float = DataSettings.holdout,
) -> DataSet:
    """The data set called `name`, its files read from `data_dir` and fetched into it first if `download`.

    A path is a folder of one's own images, scaled to `side`; where it has no test images, the share `holdout` of the
    labelled ones becomes them. `progress` is told about downloads as `fetch` describes.
    """
    data_dir = Path(data_dir)
    if is_folder(name):
        return read_folder(Path(name), side, holdout)
    if name not in SOURCES:
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
