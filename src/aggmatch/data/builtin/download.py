"""Download of published files: resumed after an interruption, verified, and renamed only when complete."""

import gzip
import hashlib
import http.client
import zlib
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from aggmatch.data.images import Archive, reading
from aggmatch.errors import AggMatchError
from aggmatch.progress import Progress, following

CHUNK = 1 << 18
TIMEOUT = 30.0
"""Seconds without a byte after which a connection counts as lost."""


def fetch(archive: Archive, folder: Path, progress: Progress | None = None) -> Path:
    """Return the path of `archive` in `folder`. It is downloaded if missing, and its MD5 is always verified.

    An existing .gz file may also be another packing of the published content, if the MD5 of the content is known.

    An interrupted download stays as FILE.part, and the next call continues it. Without a progress callback, a terminal
    shows a progress bar.
    """
    target, part = folder / archive.file, folder / f"{archive.file}.part"
    if target.exists():
        with reading(target):
            found = md5(target)
        if found != archive.md5 and not (archive.content_md5 and content_md5(target) == archive.content_md5):
            # Not replaced: it may be the user's own file.
            advice = "Delete it and download it again."
            if target.suffix == ".gz":
                advice += " If it is another packing of the same content, keep it and do not ask for a download."
            raise AggMatchError(
                f"{target} is not the published file: its MD5 is {found} instead of {archive.md5}. {advice}",
                options="--download",
            )
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with following(progress, archive.file, "bytes") as report:
            _receive(archive, part, report)
        if (found := md5(part)) != archive.md5:
            part.unlink()
            raise AggMatchError(
                f"{archive.url} did not send the published file: its MD5 is {found} instead of {archive.md5}. "
                f"It was deleted. Try again later, or put {archive.file} into {folder} yourself."
            )
        part.replace(target)
    except OSError as error:
        raise AggMatchError(
            f"Cannot write {error.filename or part}: {error.strerror}. "
            "Free some space or choose another folder (data_dir), then try again: the download continues.",
            options="--data-dir",
        ) from None
    return target


def md5(path: Path) -> str:
    """Return the MD5 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def content_md5(path: Path) -> str | None:
    """Return the MD5 of what a .gz file holds, in hexadecimal; None if it cannot be unpacked."""
    try:
        with gzip.open(path) as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except (OSError, EOFError, zlib.error):
        return None


def _receive(archive: Archive, part: Path, progress: Progress) -> None:
    """Complete the file `part`. Disk errors are raised as OSError, network errors as AggMatchError."""
    have = part.stat().st_size if part.exists() else 0
    if have == archive.size:
        return  # interrupted between the last byte and the rename
    response, start = _open(archive.url, have if have < archive.size else 0)
    with response:
        left = response.headers.get("Content-Length", "")
        total = start + int(left) if left.isdecimal() and len(left) < 16 else archive.size
        done = start
        progress(done, total)
        with part.open("ab" if start else "wb") as file:
            for chunk in _chunks(response, archive.url):
                done += len(chunk)
                if done > archive.size:
                    break
                file.write(chunk)
                progress(done, total)
    if done > archive.size:
        part.unlink()
        raise AggMatchError(
            f"{archive.url} did not send the published file: it sends more than {archive.size:,} bytes. What came was "
            f"deleted. Try again later, or put {archive.file} into {part.parent} yourself."
        )
    if done < total:
        raise _failed(archive.url, f"the connection closed after {done} of {total} bytes")


def _open(url: str, start: int) -> tuple[HTTPResponse, int]:
    """Return a response and its first byte: `start` if the server can continue there, otherwise 0."""
    request = Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response: HTTPResponse = urlopen(request, timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            return _open(url, 0)
        raise _failed(url, f"the server answered {error.code} {error.reason}") from None
    except (OSError, http.client.HTTPException) as error:
        raise _failed(url, error) from None
    if not start or response.status != http.client.PARTIAL_CONTENT:
        return response, 0
    if response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
        return response, start
    response.close()
    return _open(url, 0)


def _chunks(response: HTTPResponse, url: str) -> Iterator[bytes]:
    try:
        while chunk := response.read(CHUNK):
            yield chunk
    except (OSError, http.client.HTTPException) as error:
        raise _failed(url, error) from None


def _failed(url: str, why: object) -> AggMatchError:
    reason = why.reason if isinstance(why, URLError) else why
    text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
    return AggMatchError(f"Cannot fetch {url}: {text}. Run it again to continue the download.")
