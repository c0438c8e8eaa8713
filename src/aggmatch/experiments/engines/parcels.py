"""Run folders on their way between machines: files as a tar archive, sent in pieces and unpacked in a safe order.

Every moment of unpacking leaves a folder that can be resumed: the configuration comes before the log, the log before
the checkpoints that point into it, and the summary, which says that the run is finished, comes last.
"""

import tarfile
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from aggmatch.errors import AggMatchError
from aggmatch.runs import checkpoint
from aggmatch.runs.folder import RunFolder
from aggmatch.storage.files import is_part, make_folder, write_atomically

PIECE = 4 * 2**20
"""Bytes of an archive that travel at once."""


class Stamp(NamedTuple):
    """Size and time of a file; they change when it is written."""

    size: int
    time: int


def files_of(folder: Path) -> dict[str, Stamp]:
    """Return the files of a run folder by their names in it, without its lock and unfinished files."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path != RunFolder(folder).lock and not is_part(path):
            status = path.stat()
            found[path.relative_to(folder).as_posix()] = Stamp(status.st_size, status.st_mtime_ns)
    return found


def pack(folder: Path, names: Collection[str], archive: Path) -> Iterator[bytes]:
    """Write files of a folder to an archive, and yield its pieces. The archive is deleted at the end."""
    with tarfile.open(archive, "w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = (folder / name).stat().st_size
            with (folder / name).open("rb") as file:
                tar.addfile(member, file)
    with archive.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece
    archive.unlink()


def unpack(archive: Path, folder: Path) -> None:
    """Write the files of an archive to a run folder, each of them atomically.

    Raises an `AggMatchError`, and writes nothing, if the archive is damaged or holds anything but files in the folder.
    """
    try:
        with tarfile.open(archive, "r:") as tar:
            members = tar.getmembers()
            for member in members:
                check(member, folder)
            for member in sorted(members, key=lambda member: rank(member.name)):
                file = tar.extractfile(member)
                assert file is not None, "it is a regular file"
                path = folder / member.name
                make_folder(path.parent)
                write_atomically(path, file.read())
    except (tarfile.TarError, EOFError) as error:
        raise AggMatchError(f"The files of {folder} arrived damaged: {error}. Start the command again.") from None


def check(member: tarfile.TarInfo, folder: Path) -> None:
    """Raise an `AggMatchError` if a member of an archive is not a plain file whose place is inside the folder."""
    name = PurePosixPath(member.name)
    inside = bool(name.parts) and not name.is_absolute() and ".." not in name.parts and "\0" not in member.name
    if member.type != tarfile.REGTYPE or not inside:
        raise AggMatchError(f"The files for {folder} were refused: '{member.name}' is no plain file inside the folder.")


def rank(name: str) -> int:
    """The place of a file in the order of unpacking."""
    first = ["split.json", "config.json"]
    if name in first:
        return first.index(name)
    last = ["checkpoints", "model.safetensors", "summary.json"]
    top = PurePosixPath(name).parts[0]
    return 3 + last.index(top) if top in last else 2


def remove_old_checkpoints(folder: RunFolder, names: Collection[str]) -> None:
    """Delete the checkpoints of a folder that are not among the files with these names."""
    for path in checkpoint.found(folder.checkpoints):
        if path.relative_to(folder.path).as_posix() not in names:
            path.unlink(missing_ok=True)
