"""Data sets by name: those of this package, a folder of images, a file of your own, or an installed package."""

import os
from collections.abc import Callable
from pathlib import Path

from aggmatch.data.images import DataSet, Source
from aggmatch.data.splits import DataSettings
from aggmatch.errors import AggMatchError
from aggmatch.registry import Registry, is_code

SOURCES: Registry[Source] = Registry(
    "data set",
    "data",
    builtin=lambda: {
        "digits": "aggmatch.data.digits:DIGITS",
        "cifar10": "aggmatch.data.cifar:CIFAR10",
        "cifar100": "aggmatch.data.cifar:CIFAR100",
        "svhn": "aggmatch.data.svhn:SVHN",
        "mnist": "aggmatch.data.mnist:MNIST",
        "fashion-mnist": "aggmatch.data.mnist:FASHION_MNIST",
        "stl10": "aggmatch.data.stl10:STL10",
    },
    accepts=lambda part: isinstance(part, Source),
    wanted="an aggmatch.data.Source",
)
"""Every data set that can be named. A new one is a module with a `Source`, named here or by an entry point."""


def is_folder(name: str) -> bool:
    """Whether a data set is a folder of images: not a known name, and a folder that exists or a path to one."""
    if name in SOURCES:
        return False
    if name and Path(name).is_dir():
        return True
    separators = [separator for separator in (os.sep, os.altsep) if separator]
    return not is_code(name) and any(separator in name for separator in separators)


def locate(name: str) -> str:
    """The name under which a run remembers a data set: the whole path of a folder, so that it resumes from anywhere."""
    return str(Path(name).resolve()) if is_folder(name) else name


def load_for(settings: DataSettings, data_dir: str, download: bool = False) -> DataSet:
    """The data set that the settings of a run name."""
    return load(settings.name, data_dir, download, side=settings.side, holdout=settings.holdout)


def load(
    name: str,
    data_dir: str | Path = "data",
    download: bool = False,
    progress: Callable[[int, int], None] | None = None,
    *,
    side: int = DataSettings.side,
    holdout: float = DataSettings.holdout,
) -> DataSet:
    """Read a data set.

    name: one of `aggmatch list data`, the path of a folder of images, or `path/to/file.py:NAME`.
    data_dir: folder of its official files; with `download`, missing ones are fetched into it, and `progress` is called
        with the bytes so far and in all.
    side, holdout: for a folder, the size its images are scaled to, and the share of labelled images that become test
        images if it has none.

    Example: `load("digits").train.pixels.shape` is (1437, 1, 8, 8).
    """
    if is_folder(name):
        from aggmatch.data.folder import read_folder

        return read_folder(Path(name), side, holdout)
    source, data_dir = SOURCES.load(name), Path(data_dir)
    require_files(source, data_dir, download, progress)
    train, test = source.read(data_dir)
    folds = source.folds(data_dir) if source.folds else ()
    return DataSet(name, train, test, source.classes, source.mirror, source.noise_map, folds)


def require_files(
    source: Source, data_dir: Path, download: bool, progress: Callable[[int, int], None] | None = None
) -> None:
    """Raise an `AggMatchError` if files of a data set are missing; with `download`, fetch them first."""
    try:
        if download:
            from aggmatch.data.download import fetch

            # Also archives that are there, to verify them; files that lie unpacked belong to the user.
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
            f"{source.name} is not in {data_dir}: looked for {wanted}. "
            f"Add --download to fetch {size:.0f} MB from {origin}, or name another folder with --data-dir."
        )
