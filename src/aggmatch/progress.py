"""The progress of slow reads and downloads: a callback, and a bar on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

Progress = Callable[[int, int], None]
"""Progress callback: takes what is done so far and the total, in bytes of a download or in images."""


def following(progress: Progress | None, title: str, unit: str) -> AbstractContextManager[Progress]:
    """Within, the given callback, or that of a progress bar with a title if it is None; see `progress_bar`."""
    return nullcontext(progress) if progress else progress_bar(title, unit)


@contextmanager
def progress_bar(title: str, unit: str) -> Iterator[Progress]:
    """Within, a progress bar with the time left on standard error; yields its progress callback.

    unit: `bytes` or `images`. Shows nothing without a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda done, total: None
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

    counts: tuple[ProgressColumn, ...] = (DownloadColumn(), TransferSpeedColumn())
    if unit == "images":
        counts = (MofNCompleteColumn(), TextColumn("images"))
    columns = (TextColumn("{task.description}"), BarColumn(), *counts, TimeRemainingColumn(), TextColumn("left"))
    with Bar(*columns, console=Console(stderr=True), transient=unit == "images") as bar:
        task = bar.add_task(title, total=None, start=False)

        def report(done: int, total: int) -> None:
            # The first call resets the clock: bytes of an earlier attempt do not count as speed.
            (bar.update if bar.tasks[0].started else bar.reset)(task, completed=done, total=total)

        yield report
