"""Trains one run on a machine of a cluster, in a temporary folder, and sends records and files to the command.

The machines need not share a file system: the files of the run are sent both ways.
"""

import os
import platform
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from aggmatch import __version__
from aggmatch.console import repeating
from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.parcels import Stamp, files_of, pack, unpack
from aggmatch.experiments.planned import PlannedRun
from aggmatch.runs import checkpoint
from aggmatch.storage.files import digest, is_running
from aggmatch.training.begin import start_or_resume
from aggmatch.training.run import Stopped

POLL = 2.0
"""Seconds between two questions whether to stop."""


@dataclass(frozen=True)
class Order:
    """What a machine needs to know to train a run."""

    run: dict[str, Any]
    """The planned run as values; its folder is the one on the machine of the command."""
    download: bool
    """Whether missing files of the data set are fetched."""
    folder: str = "."
    """The working directory of the command; used if the machine has it too."""
    version: str = __version__
    """The version of aggmatch that the command uses."""


class Message(NamedTuple):
    """What a machine sends to the command.

    `started`: its name. `logged`: the new record. `piece`: bytes of an archive of files. `files`: the archive is
    complete; names of all files in the folder. `finished`, `stopped`, `failed`: the last message; the reason.
    """

    kind: Literal["started", "logged", "piece", "files", "finished", "stopped", "failed"]
    value: Any = None


def train_run(order: Order, pieces: Iterable[bytes], stop: Callable[[], bool]) -> Iterator[Message]:
    """Train a run to its end and yield what happens.

    The files of the run follow each checkpoint. pieces: the archive of the files so far. stop: says whether to save and
    stop; a thread asks it.
    """
    yield Message("started", f"process {os.getpid()} on {platform.node()}")
    if order.version != __version__:
        reason = f"{platform.node()} has aggmatch {__version__}, but the command is of version {order.version}."
        yield Message("failed", f"{reason} Install the same version everywhere.")
        return
    with suppress(OSError):
        os.chdir(order.folder)
    with scratch_folder() as scratch:
        path = scratch / "run"
        sent: dict[str, Stamp] = {}
        try:
            take(pieces, path, sent)
            run = start_or_resume(PlannedRun.from_dict(order.run).settings, path, download=order.download)
            saved = checkpoint.found(run.folder.checkpoints)
            with stopping_when(stop):
                for record in run.train():
                    yield Message("logged", record)
                    if saved != (saved := checkpoint.found(run.folder.checkpoints)):
                        yield from send(path, sent)
            last = Message("finished")
        except Stopped:
            last = Message("stopped", "It was told to stop.")
        except AggMatchError as error:
            last = Message("failed", str(error).replace(str(path), order.run["path"]))
        except Exception as error:  # of code from elsewhere, or too little memory
            last = Message("failed", f"{type(error).__name__}: {error}")
        if path.exists():
            yield from send(path, sent)
    yield last


def take(pieces: Iterable[bytes], path: Path, sent: dict[str, Stamp]) -> None:
    """Unpack the files of a run, if there are any, and note them as sent: the command has them already."""
    archive = path.with_name("files.tar")
    with archive.open("wb") as file:
        for piece in pieces:
            file.write(piece)
    if archive.stat().st_size:
        unpack(archive, path)
    archive.unlink()
    sent.update(files_of(path))


def send(path: Path, sent: dict[str, Stamp]) -> Iterator[Message]:
    """Yield the files that are new or changed since they were sent, and note them as sent."""
    now = files_of(path)
    changed = [name for name, stamp in now.items() if sent.get(name) != stamp]
    for piece in pack(path, changed, path.with_name("files.tar")) if changed else ():
        yield Message("piece", piece)
    sent.clear()
    sent.update(now)
    yield Message("files", list(now))


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield a new folder on a local disk; delete it at the end, and first those that killed processes left here."""
    start = f"aggmatch-{machine()}-"
    for left in Path(tempfile.gettempdir()).glob(f"{start}*"):
        process = left.name.removeprefix(start).split("-")[0]
        if process.isdecimal() and not is_running(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{start}{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def machine() -> str:
    """A name of this machine or container, in which a process number is unique."""
    space = Path("/proc/self/ns/pid")
    return digest(f"{platform.node()} {space.stat().st_ino if space.exists() else ''}".encode())


def stopping_when(asked: Callable[[], bool]) -> AbstractContextManager[None]:
    """Within, a thread sends SIGTERM to this process as soon as it is asked to stop."""

    def watch() -> bool:
        if stop := asked():
            signal.raise_signal(signal.SIGTERM)
        return stop

    return repeating(watch, POLL, "stop")
