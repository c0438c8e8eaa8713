"""Test accuracy of both networks over the steps."""

from collections.abc import Iterator, Sequence

from aggmatch.report.curves import Quantity, curve_panels
from aggmatch.report.figure import Panel
from aggmatch.report.figures import Figure
from aggmatch.runs.stored import StoredRun

QUANTITIES = (
    Quantity("accuracy_average", "average", "Averaged network, %", most=100),
    Quantity("accuracy_online", "online", "Network in training, %", most=100),
)


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel of curves with a common scale."""
    words = "Accuracy on all test images."
    yield from curve_panels(runs, "accuracy", "Test accuracy", words, QUANTITIES, one_scale=True)


FIGURE = Figure(draw, chapter="training", needs="evaluations in its log", order=10, quick=True)
