"""Data sets by name: those of this package, a folder of images, a file of your own, or an installed package."""

import os
from collections.abc import Callable
from pathlib import Path

from aggmatch.data.images import DataSet, Images, Source
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
"""All data sets with a name. To add one here, write a module with a `Source` and name it above."""


def is_folder(name: str) -> bool:
    """Whether a data set is a folder of images: not a known name, and a folder that exists or the path of one."""
    if name in SOURCES:
        return False
    if name and Path(name).is_dir():
        return True
    return not is_code(name) and any(separator in name for separator in (os.sep, os.altsep) if separator)


def locate(name: str) -> str:
    """Return the name that a run stores for a data set: the full path of a folder, so that it resumes anywhere."""
    return str(Path(name).resolve()) if is_folder(name) else name


def load_for(settings: DataSettings, data_dir: str, download: bool = False) -> DataSet:
    """Read the data set that the settings of a run name."""
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

    name: one of `aggmatch list data`, the path of a folder of images, or `path/to/file.py:NAME`, a `Source`.
    data_dir: folder of the official files; `download` fetches missing files into it.
    progress: progress callback of the download; takes the bytes so far and the total bytes.
    side, holdout: for a folder, the size to which images are scaled, and the share of the labelled images that become
        test images if it has none.
    Returns images as uint8, (N, channels, height, width). Raises `AggMatchError` if they cannot be read.

    Example: `load("digits").train.pixels.shape` is (1437, 1, 8, 8).
    """
    if is_folder(name):
        from aggmatch.data.folder import read_folder

        return read_folder(Path(name), side, holdout)
    source, data_dir = SOURCES.load(name), Path(data_dir)
    require_files(source, data_dir, download, progress)
    train, test, folds = read_source(source, data_dir)
    return DataSet(name, train, test, source.classes, source.mirror, source.noise_map, folds)


def read_source(source: Source, data_dir: Path) -> tuple[Images, Images, tuple[tuple[int, ...], ...]]:
    """Return training images, test images and official folds; raise `AggMatchError` if the source returns others."""
    try:
        train, test = source.read(data_dir)
        folds = source.folds(data_dir) if source.folds else ()
        shapes = {tuple(part.pixels.shape[1:]) for part in (train, test)}
    except (AggMatchError, MemoryError):
        raise
    except (Exception, SystemExit) as error:  # any mistake in the code of an extension
        problem = f"{type(error).__name__}: {error}"
        raise AggMatchError(f"Cannot read data set {source.name} as training and test Images: {problem}.") from error
    if shapes != {tuple(source.shape)}:
        found = " and ".join(map(str, shapes))
        raise AggMatchError(f"Images of data set {source.name} must have its shape, {source.shape}, got {found}.")
    return train, test, folds


def require_files(
    source: Source, data_dir: Path, download: bool, progress: Callable[[int, int], None] | None = None
) -> None:
    """Raise `AggMatchError` if files of a data set are missing; `download` fetches them first."""
    try:
        if download:
            from aggmatch.data.download import fetch

            # Existing archives are verified too; unpacked files belong to the user and are not.
            for archive in source.archives:
                if not archive.unpacked(data_dir):
                    fetch(archive, data_dir, progress)
        missing = source.missing(data_dir)
    except OSError as error:
        raise AggMatchError(f"Cannot open {data_dir}: {error.strerror}.") from None
    if missing:
        wanted = " and ".join(archive.wanted(data_dir) for archive in missing)
        origin = " and ".join(archive.url for archive in missing)
        size = sum(archive.size for archive in missing) / 1e6
        raise AggMatchError(
            f"{source.name} is not in {data_dir}: there is no {wanted}. "
            f"Allow the download of {size:.0f} MB from {origin} (download), or name another folder (data_dir).",
            options="--download, --data-dir",
        )
