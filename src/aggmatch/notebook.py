"""Runs in a notebook: curves that grow while a run trains, and the report as a part of the notebook."""

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from pathlib import Path

from aggmatch.console import follow
from aggmatch.errors import AggMatchError
from aggmatch.inference.model import TrainedModel
from aggmatch.registry import short_name
from aggmatch.report.figure import svg
from aggmatch.report.figures import draw
from aggmatch.report.page import page
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.storage.files import write_atomically
from aggmatch.training.run import Run

CURVES = ("accuracy", "losses")
"""Figures of which the first plot grows while a run trains."""
SHARE = 10
"""Drawing takes at most 1 / SHARE of the time of training."""


def watch(run: Run) -> None:
    """Train a run to its last step and show how it goes.

    In a notebook, curves of accuracy and losses grow below the cell. On a terminal there is a progress bar, and
    elsewhere there are lines of text. run: made by `start` or `resume`. Raises what `Run.train` raises.

    Example: `watch(start(resolve({"data.name": "digits"}), "runs/mine"))`.
    """
    (watch_in_notebook if in_notebook() else follow)(run)


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel."""
    if "IPython" not in sys.modules:
        return False
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None) is not None


def watch_in_notebook(run: Run) -> None:
    """Train a run and replace its curves in the output of the cell whenever drawing them costs little."""
    from IPython.display import HTML, display

    shown = display(HTML("Training starts ..."), display_id=True)
    free = time.monotonic()  # when to draw again
    for _ in run.train():
        if (now := time.monotonic()) >= free:
            shown.update(HTML(curves(run)))
            free = time.monotonic() + SHARE * (time.monotonic() - now)
    shown.update(HTML(curves(run)))


def curves(run: Run) -> str:
    """Return the training curves of a run as HTML, below a line with its current step and accuracy."""
    stored = stored_run(run.folder.path, run.settings.parts)
    accuracy = "" if stored.accuracy is None else f", test accuracy {stored.accuracy:.1f} %"
    line = f"{short_name(run.settings.method_name)}: step {stored.steps:,} of {run.settings.train.steps:,}{accuracy}"
    plots = [svg(panel.plots[0], f"{panel.name}-live", panel.title) for _, panel in draw([stored], CURVES)]
    return f"<p>{escape(line)}</p><div>{''.join(plots)}</div>"


def stored_run(folder: Path, allow: Iterable[str]) -> StoredRun:
    """Read what a run has written so far."""
    (stored,) = read_runs([folder], allow=allow)
    return stored


@dataclass(frozen=True, repr=False)
class Report:
    """The report on a run, which a notebook shows in full.

    Example: `show_report("runs/mine").write("report.html")`.
    """

    folder: Path
    """Folder of the run."""
    html: str
    """The page, which loads nothing from elsewhere."""

    def write(self, path: str | Path) -> None:
        """Write the page to a file."""
        write_atomically(Path(path), self.html.encode())

    def __repr__(self) -> str:
        return f"<Report on {self.folder}: a notebook shows it, and `write` saves it as a page.>"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.html)}" style="width: 100%; height: 700px; border: 0"></iframe>'


def show_report(run: Run | TrainedModel | str | Path, *, allow: Iterable[str] = ()) -> Report:
    """Return the report on a run: what training did, and how far to trust the result. A notebook shows it in full.

    run: a run, its model, or its folder. allow: code that the folder may name, such as `my_method.py:Mine`.
    It takes some seconds. Raises an `AggMatchError` if the run has no folder any more.

    Example: `show_report("runs/mine")` as the last line of a cell.
    """
    known = list(allow)
    if isinstance(run, (Run, TrainedModel)):  # its code is imported already
        known += run.settings.parts
    folder = run.folder.path if isinstance(run, Run) else run.folder if isinstance(run, TrainedModel) else Path(run)
    if folder is None:
        raise AggMatchError("The model has no run folder to report on. Keep it: AggMatchClassifier(run_dir=FOLDER).")
    return Report(folder, page([stored_run(folder, known)]))
