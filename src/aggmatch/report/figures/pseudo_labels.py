"""Precision, recall, coverage and confidence of the pseudo labels over the steps."""

from collections.abc import Iterator, Sequence

from aggmatch.report.curves import Quantity, curve_panels
from aggmatch.report.figure import Panel
from aggmatch.report.figures import Figure
from aggmatch.runs.stored import StoredRun

QUANTITIES = (
    Quantity("pseudo_precision", "precision", "Precision, %", 100, most=100),
    Quantity("pseudo_recall", "recall", "Recall, %", 100, most=100),
    Quantity("pseudo_coverage", "coverage", "Coverage, %", 100, most=100),
    Quantity("confidence", "confidence", "Mean confidence", most=1),
)
WORDS = (
    "Pseudo labels of unlabelled images compared with the truth, which training does not see; each counts with its "
    "weight in the loss. Precision: share of right ones among them, a gap if none counts. Recall: right ones over all "
    "images. Coverage: mean weight. Confidence: each method's own, before any threshold. Means between two log steps."
)


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel of curves."""
    yield from curve_panels(runs, "pseudo-labels", "Pseudo labels in training", WORDS, QUANTITIES)


FIGURE = Figure(draw, chapter="training", needs="its log, of a method with pseudo labels", order=30, quick=True)
