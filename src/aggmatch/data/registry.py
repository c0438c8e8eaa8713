"""Data sets by name: those of this package, images of your own, a file of your own, or an installed package."""

import os
import warnings
from difflib import get_close_matches
from pathlib import Path

from aggmatch.data.images import DataSet, Images, Source
from aggmatch.data.rows import READ_ONLY
from aggmatch.data.splits import DataSettings, keep_test_images
from aggmatch.errors import AggMatchError
from aggmatch.progress import Progress
from aggmatch.registry import Registry, is_code
from aggmatch.validate import InvalidValue

SOURCES: Registry[Source] = Registry(
    "data set",
    "data",
    builtin=lambda: {
        "digits": "aggmatch.data.builtin.digits:DIGITS",
        "cifar10": "aggmatch.data.builtin.cifar:CIFAR10",
        "cifar100": "aggmatch.data.builtin.cifar:CIFAR100",
        "svhn": "aggmatch.data.builtin.svhn:SVHN",
        "mnist": "aggmatch.data.builtin.mnist:MNIST",
        "fashion-mnist": "aggmatch.data.builtin.mnist:FASHION_MNIST",
        "stl10": "aggmatch.data.builtin.stl10:STL10",
    },
    accepts=lambda part: isinstance(part, Source),
    wanted="an aggmatch.data.Source",
)
"""All data sets with a name. To add one here, write a module with a `Source` and name it above."""


PACKED = (".zip", ".npz")
"""Ends of the names of files that hold a whole data set."""
TABLES = (".csv", ".tsv", ".jsonl", ".xlsx")
"""Ends of the names of tables, which hold labels and no images."""


CLOSE = 0.7
"""Similarity from which a name may be meant; names that share only `.zip` are less similar."""


def is_own_images(name: str) -> bool:
    """Whether a data set is images of your own: not a known name, but a folder, a .zip or .npz file, or a path."""
    if name in SOURCES:
        return False
    try:
        if name and Path(name).is_dir():
            return True
    except OSError:  # too long for a name of a file
        return False
    return not is_code(name) and (
        Path(name).suffix.lower() in PACKED or any(separator in name for separator in (os.sep, os.altsep) if separator)
    )


def locate(name: str) -> str:
    """Return the name that a run stores for a data set: the full path of own images, so that it resumes anywhere."""
    return str(Path(name).resolve()) if is_own_images(name) else name


def name_clash(name: str) -> str:
    """Return a sentence if a known data set hides a folder of the same name; otherwise an empty text."""
    if name not in SOURCES or not Path(name).is_dir():
        return ""
    return f"'{name}' is the data set of `aggmatch list data`. For your folder of this name, write .{os.sep}{name}"


def not_found(name: str) -> AggMatchError:
    """Return the error for a name that is neither a data set nor images of your own, with what it could be."""
    path, packed = Path(name), Path(name).suffix.lower() in PACKED
    if path.suffix.lower() in TABLES:
        problem = f"{name} is a table, not images. Name the folder of the images, and the table as data.labels_file."
        return AggMatchError(problem, options=f"--labels-file {name}")
    if path.is_file():
        return AggMatchError(f"{name} is not a folder of images, and does not end in {' or '.join(PACKED)}.")
    hint = "Name a folder of images, or a .zip or .npz file of them."
    if not is_own_images(name):
        hint = f"Known: {', '.join(SOURCES.names())}. Or name a folder of images, or a .zip or .npz file of them."
    if close := get_close_matches(name, SOURCES.names(), 1):
        hint = f"Did you mean '{close[0]}'?"
    elif close := get_close_matches(path.name, own_images_in(path.parent), 1, CLOSE):
        hint = f"Did you mean '{path.parent / close[0]}'?"
    start = f"There is no {'file' if packed else 'folder'} {name}." if is_own_images(name) else ""
    problem = f"{start or f'Unknown data set {name!r}.'} {hint}"
    if path.is_absolute():  # as a run stores it
        return AggMatchError(
            f"{problem} If the images of a run have moved, resume it with their new place.",
            options="aggmatch train NEW/PLACE --resume --out RUN",
        )
    return AggMatchError(f"{problem} See: aggmatch list data")


def own_images_in(folder: Path) -> list[str]:
    """Return the names of the folders and packed data sets in a folder; empty if it cannot be read."""
    try:
        entries = list(folder.iterdir())
    except OSError:
        return []
    return sorted(entry.name for entry in entries if entry.is_dir() or entry.suffix.lower() in PACKED)


def load_for(settings: DataSettings, data_dir: str, download: bool = False, *, cache_dir: str | None = None) -> DataSet:
    """Read the data set that the settings of a run name, with the test images of an earlier run if they say so."""
    data = load(
        settings.name,
        data_dir,
        download,
        side=settings.side,
        holdout=settings.holdout,
        labels_file=settings.labels_file,
        cache_dir=cache_dir,
    )
    if settings.test_images is None or has_test_folder(settings.name):
        return data
    return keep_test_images(data, Path(settings.test_images))


def has_test_folder(name: str) -> bool:
    """Whether images of your own come with a folder of test images, which then decides what is tested."""
    from aggmatch.data.own.folder import test_folder

    return Path(name).is_dir() and test_folder(Path(name)) is not None


def load(
    name: str,
    data_dir: str | Path = "data",
    download: bool = False,
    progress: Progress | None = None,
    *,
    side: int = DataSettings.side,
    holdout: float = DataSettings.holdout,
    labels_file: str | Path | None = None,
    cache_dir: str | None = None,
) -> DataSet:
    """Read a data set.

    name: one of `aggmatch list data`, images of your own (a folder, or a .zip or .npz file), or
        `path/to/file.py:NAME`, a `Source`.
    data_dir: folder of the official files; `download` fetches missing files into it.
    progress: progress callback; takes what is done so far and the total, in bytes of a download or in own images.
    side: for own images, the height and width to which they are scaled.
    holdout: for own images without a test folder, the share of the labelled images that becomes the test set; 0 for no
        test set.
    labels_file: for own images, a table with the columns file and label; otherwise folders are classes.
    cache_dir: folder in which decoded images are cached; see `files.cache_folder`.
    Returns images as uint8, (N, channels, height, width). Raises `AggMatchError` if they cannot be read.

    Example: `load("digits").train.pixels.shape` is (1437, 1, 8, 8).
    """
    if is_own_images(name):
        path = Path(name)
        if not path.is_dir() and not (path.is_file() and path.suffix.lower() in PACKED):
            raise not_found(name)
        from aggmatch.data.own.images import read_own_images

        table = Path(labels_file) if labels_file else None
        return read_own_images(path, side, holdout, labels_file=table, cache_dir=cache_dir, progress=progress)
    if name not in SOURCES and not is_code(name):
        raise not_found(name)
    if labels_file:
        raise InvalidValue("data.labels_file", f"needs a folder or .zip of own images, got {labels_file} for {name}")
    source, data_dir = SOURCES.load(name), Path(data_dir)
    require_files(source, data_dir, download, progress)
    train, test, folds = read_source(source, data_dir)
    return DataSet(name, train, test, source.classes, source.mirror, source.noise_map, folds)


def read_source(source: Source, data_dir: Path) -> tuple[Images, Images, tuple[tuple[int, ...], ...]]:
    """Return training images, test images and official folds; raise `AggMatchError` if the source returns others."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", READ_ONLY)  # images may be maps of files
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


def require_files(source: Source, data_dir: Path, download: bool, progress: Progress | None = None) -> None:
    """Raise `AggMatchError` if files of a data set are missing; `download` fetches them first."""
    try:
        if download:
            from aggmatch.data.builtin.download import fetch

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
