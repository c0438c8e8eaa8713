"""The images of a folder by id, and their thumbnails.

A page names an image by its id, never by a path. The id is a hash of the path relative to the folder, so that it stays
the same when the server starts again.
"""

import io
import os
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from aggmatch.data.own.decode import printable, read_thumbnail
from aggmatch.data.own.folder import find_images, test_folder
from aggmatch.errors import AggMatchError
from aggmatch.storage.annotations import file_name
from aggmatch.storage.cache import PART, keep_newest
from aggmatch.storage.files import digest

THUMBNAIL, PHOTO = 256, 1280
"""Longer sides in pixels of the pictures in the grid and in the single view."""
LIMIT = 4 * 2**30
"""Bytes of thumbnails of all folders together."""
FRESH = 3.0
"""Seconds during which a folder is not read again."""


def image_id(name: str) -> str:
    """Return the id of the image with this path relative to the folder."""
    return digest(os.fsencode(file_name(name)))


@dataclass
class Index:
    """The image files of a folder. Images of its folder `test` are left out: they must stay unseen.

    Example: `index = Index(Path("photos"))`, then `index.file(image_id("a/1.jpg"))`.
    """

    root: Path
    names: dict[str, str] = field(default_factory=dict)
    """Id → path relative to the folder, in the order of the paths. Ids of files that vanished are left out."""
    keys: dict[str, str] = field(default_factory=dict)
    """Path in the form of `annotations.file_name` → id."""
    shown: dict[str, str] = field(default_factory=dict)
    """Path in printable characters → id."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """Id → why the file is not an image, for files that were opened."""
    warnings: list[str] = field(default_factory=list)
    """What was noticed when the folder was read."""
    scanned: float = float("-inf")

    def __post_init__(self) -> None:
        self.scan()

    def scan(self) -> bool:
        """Read the folder again, unless that was a moment ago; return whether its files changed."""
        if time.monotonic() - self.scanned < FRESH:
            return False
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                files, test = find_images(self.root), test_folder(self.root)
        except OSError as error:
            raise AggMatchError(f"Cannot read {printable(self.root)}: {error.strerror}.") from None
        found = [file.relative_to(self.root).as_posix() for file in files if not (test and file.is_relative_to(test))]
        names = {image_id(name): name for name in found}
        self.warnings = [str(warning.message) for warning in caught]
        self.scanned, changed = time.monotonic(), names != self.names
        if changed:
            self.names = names
            self.keys = {file_name(name): key for key, name in names.items()}
            self.shown = {printable(name): key for key, name in names.items()}
        self.unreadable = {key: why for key, why in self.unreadable.items() if key in names}
        return changed

    def file(self, key: str) -> Path:
        """Return the file of an id; raise KeyError if there is none."""
        return self.root / self.names[key]


class Thumbnails:
    """Small JPEG copies of photos, made once and kept in the cache.

    cache: folder of the thumbnails of all projects. root: folder of the images.
    """

    def __init__(self, cache: Path, root: Path) -> None:
        self.folder = cache / digest(os.fsencode(root.resolve()))
        if self.folder.exists():
            keep_newest(cache, LIMIT, self.folder)

    def get(self, key: str, file: Path) -> bytes:
        """Return the thumbnail of a file; raise OSError that says why if it cannot be read."""
        status = file.stat()
        path = self.folder / key[:2] / f"{key}-{status.st_size:x}-{status.st_mtime_ns:x}.jpg"
        try:
            return path.read_bytes()
        except OSError:
            data = jpeg(file, THUMBNAIL)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}{PART}")
            part.write_bytes(data)
            part.replace(path)
        except OSError:  # a full or read-only disk: the next request makes it again
            pass
        return data


def jpeg(file: Path, side: int) -> bytes:
    """Return a photo as a JPEG whose longer side has at most `side` pixels; raise OSError if it cannot be read."""
    stream = io.BytesIO()
    read_thumbnail(file, side).save(stream, "JPEG", quality=85)
    return stream.getvalue()
