"""The progress of slow reads and downloads: a callback, and a bar on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from datetime import timedelta

Progress = Callable[[int, int], None]
"""Progress callback: takes what is done so far and the total, in bytes of a download, images or steps."""
LISTENER: ContextVar[Callable[[str], Progress] | None] = ContextVar("LISTENER", default=None)
"""What `listening` was given."""


def following(progress: Progress | None, title: str, unit: str) -> AbstractContextManager[Progress]:
    """Within, the given callback; if it is None, that of `listening`, or of a progress bar with a title."""
    if not progress and (listener := LISTENER.get()):
        progress = listener(title)
    return nullcontext(progress) if progress else progress_bar(title, unit)


class Lines:
    """Progress as lines on standard error, rarely enough for a log file."""

    FIRST, NEXT = 5.0, 30.0
    """Seconds before the first line, and between two lines."""

    def __init__(self, title: str) -> None:
        self.title, self.started = title, time.monotonic()
        self.due = self.started + self.FIRST

    def report(self, done: int, total: int) -> None:
        """Print a line with the time left, if one is due."""
        now = time.monotonic()
        if now < self.due or not 0 < done < total:
            return
        left = timedelta(seconds=round((now - self.started) * (total - done) / done))
        print(f"{self.title}: {100 * done // total} %, about {left} left", file=sys.stderr, flush=True)
        self.due = now + self.NEXT


@contextmanager
def listening(listener: Callable[[str], Progress]) -> Iterator[None]:
    """Within, work that would show a progress bar calls what `listener` returns for its title instead.

    Example: `with listening(lambda title: lambda done, total: print(title, done, total)): load("photos")`.
    """
    token = LISTENER.set(listener)
    try:
        yield
    finally:
        LISTENER.reset(token)


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Progress]:
    """Within, a progress bar with the time left on standard error; yields its progress callback.

    unit: `bytes`, `images` or `steps`. Without a terminal, it prints a line after a few seconds and every half minute.
    """
    if not sys.stderr.isatty():
        yield Lines(title).report
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        ProgressColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    download = unit == "bytes"
    counts: tuple[ProgressColumn, ...] = (MofNCompleteColumn(), TextColumn(unit))
    if download:
        counts = (DownloadColumn(), TransferSpeedColumn())
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn(), TextColumn("left"))
    with Bar(*columns, console=Console(stderr=True), transient=not download) as bar:
        task = bar.add_task(title, total=None, start=False)

        def report(done: int, total: int) -> None:
            # The first call resets the clock: bytes of an earlier attempt do not count as speed.
            (bar.update if bar.tasks[0].started else bar.reset)(task, completed=done, total=total)

        yield report
