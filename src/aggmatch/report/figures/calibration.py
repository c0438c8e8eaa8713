"""Confidence of pseudo labels against the share of right ones."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.errors import AggMatchError
from aggmatch.report.figure import Panel, Plot, each, house_style, new_figure, slug
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.report.style import FOREGROUND, looks
from aggmatch.runs.stats import first_of_groups
from aggmatch.runs.stored import StoredRun

BINS = 15
"""Bins of equal width in a reliability diagram."""
FEW = 10
"""A bin with fewer images than this is drawn hollow."""


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in bins of equal width; bins without an image are left out."""

    confidence: NDArray[np.float64]
    """Mean confidence of each bin."""
    accuracy: NDArray[np.float64]
    """Share of right ones in each bin."""
    count: NDArray[np.int64]
    """Images of each bin."""

    @property
    def error(self) -> float:
        """Expected calibration error: Σ_bins n_bin/n · |accuracy − confidence|."""
        gap = np.abs(self.accuracy - self.confidence)
        return float((self.count * gap).sum() / max(self.count.sum(), 1))


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel of all runs that have snapshots, the first of each group."""
    found: dict[StoredRun, PseudoLabeled] = {}
    problem = None
    try:
        looked_into = [run for run in first_of_groups(runs) if run.snapshots]
        found.update(each(lambda run: (run, pseudo_labels_at(run, run.snapshots[-1])), looked_into))
    except AggMatchError as error:
        problem = error
    if found:
        yield calibration_panel(found, {run: look.color for run, look in looks(runs).items()})
    if problem:
        raise problem


def reliabilities(found: PseudoLabeled) -> dict[str, Reliability]:
    """Reliability of the own prediction and, of a method with votes, of the refined one and of the consensus."""
    measured = {"own prediction, max p": reliability(found.own.amax(1), found.own.argmax(1) == found.truth)}
    if found.aggregated:
        right = found.aggregated.probs.argmax(1) == found.truth
        measured["refined, max p̄"] = reliability(found.aggregated.probs.amax(1), right)
        measured["consensus, c̄"] = reliability(found.aggregated.confidence, right)
    return measured


def reliability(confidence_N: Tensor, right_N: Tensor, bins: int = BINS) -> Reliability:
    """Reliability of confidences in [0, 1]; bin k holds those in (k/bins, (k + 1)/bins], and the first one also 0."""
    bin_N = (confidence_N.double() * bins).ceil().long().sub(1).clamp(0, bins - 1)
    count = torch.bincount(bin_N, minlength=bins)
    used = count > 0
    means = [torch.bincount(bin_N, values.double(), bins)[used] / count[used] for values in (confidence_N, right_N)]
    return Reliability(means[0].numpy(), means[1].numpy(), count[used].numpy())


def calibration_panel(found: Mapping[StoredRun, PseudoLabeled], colors: Mapping[StoredRun, str]) -> Panel:
    """One plot per run and kind of confidence."""
    listed = "; ".join(
        f"{run.describe()}, step {labels.step:,}, {len(labels.index):,} unlabelled training images"
        for run, labels in found.items()
    )
    names = {run: run.name if len(found) > 1 else "" for run in found}
    return Panel(
        "calibration",
        "Calibration of pseudo labels" + (f", {next(iter(found)).name}" if len(found) == 1 else ""),
        f"Confidence against the share of right pseudo labels, in {BINS} bins of equal width, hollow if a bin holds "
        f"fewer than {FEW}; below, the share of images in each bin. ECE: expected calibration error. {listed}; plain "
        f"images, online network.",
        [
            Plot(slug(f"{names[run]} {kind.split(',')[0]}"), draw_reliability(kind, measured, colors[run]), names[run])
            for run, labels in found.items()
            for kind, measured in reliabilities(labels).items()
        ],
    )


@house_style()
def draw_reliability(title: str, shown: Reliability, color: str) -> Drawing:
    """A reliability diagram above the histogram of its bins."""
    figure = new_figure(2.6, 3.3)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    above.plot([0, 1], [0, 1], color=FOREGROUND, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.6)
    above.vlines(shown.confidence, shown.confidence, shown.accuracy, color=color, linewidth=1, alpha=0.7)
    for few, fill in ((shown.count < FEW, "none"), (shown.count >= FEW, color)):
        above.scatter(shown.confidence[few], shown.accuracy[few], s=26, facecolor=fill, edgecolor=color, zorder=3)
    above.set(title=title, xlim=(0, 1.03), ylim=(-0.03, 1.03), xticks=(0, 0.5, 1), ylabel="share right")
    above.text(0.99, 0.03, f"ECE {shown.error:.3f}", size=8.5, ha="right")
    below.bar(shown.confidence, 100 * shown.count / shown.count.sum(), width=0.8 / BINS, color=color)
    below.set(xlabel="confidence", ylabel="images, %", ylim=(0, 100))
    return figure


FIGURE = Figure(draw, chapter="predictions", needs="snapshots", order=30)
