"""Training losses over the steps."""

from collections.abc import Iterator, Sequence

from aggmatch.report.curves import Quantity, curve_panels
from aggmatch.report.figure import Panel
from aggmatch.report.figures import Figure
from aggmatch.runs.stored import StoredRun

QUANTITIES = (
    Quantity("loss", "total", "Loss"),
    Quantity("loss_labeled", "labeled", "Loss, labelled images"),
    Quantity("loss_unlabeled", "unlabeled", "Loss, unlabelled images"),
)


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel of curves."""
    words = "Training losses, means between two log steps."
    yield from curve_panels(runs, "losses", "Losses", words, QUANTITIES)


FIGURE = Figure(draw, chapter="training", needs="its log", order=20, quick=True)
