"""Keep a report up to date while its runs train."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from aggmatch.config import Layer
from aggmatch.files import write_atomically
from aggmatch.report.page import page
from aggmatch.runs.stored import RunRecord, Tell, read_runs

PAUSE = 4
"""Seconds between two looks at the runs, and after which an open page reloads itself."""


def watch(
    paths: Sequence[Path],
    out: Path,
    *,
    changes: Sequence[Layer] = (),
    download: bool = False,
    tell: Tell,
    pause: Callable[[float], None] = time.sleep,
) -> bool:
    """Rewrite the report whenever a run has logged more, until all are finished; whether they are.

    While a run trains, what needs networks to be run is left out; the last report has it all. Ctrl-C leaves a report of
    what there is.
    """
    runs, shown = read_runs(paths, changes, download=download), None
    try:
        while not all(run.summary for run in runs):
            if (seen := progress(runs)) != shown:
                write_atomically(out, page(runs, quick=True, refresh=PAUSE).encode())
                tell(seen)
                shown = seen
            pause(PAUSE)
            runs = read_runs(paths, changes, download=download)
        write_atomically(out, page(runs, tell=tell).encode())
    except KeyboardInterrupt:
        write_atomically(out, page(runs, quick=True).encode())
        return False
    return True


def progress(runs: Sequence[RunRecord]) -> str:
    """How far the runs are, in a line."""
    return ", ".join(
        f"{run.name} step {run.records[-1]['step'] if run.records else 0:,} of {run.settings.train.steps:,}"
        for run in runs
    )
