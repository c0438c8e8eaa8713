"""How the feature space takes shape: t-SNE of test images at every snapshot."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from aggmatch.data import DataSet
from aggmatch.report.figure import (
    CLASS_COLORS,
    FOREGROUND,
    MANY,
    Panel,
    class_color,
    house_style,
    legend,
    new_figure,
    slug,
)
from aggmatch.report.gaps import Gaps
from aggmatch.report.pseudo_labels import evenly, look
from aggmatch.runs.stored import RunRecord, first_folds

MOST = 2000
"""Test sets up to this size are shown whole."""
SAMPLE = 1000
"""Images that stand for a larger test set."""
LABELED = 200
"""Most labelled images shown."""
PERPLEXITY = 30.0
SEED = 0
MARKS = "o^"
"""Marks of the classes of one colour."""

Points = NDArray[np.float32]


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """The feature space of the first run of each kind that has snapshots."""
    gaps = Gaps()
    yield from gaps.each(panel, [run for run in first_folds(runs) if run.snapshots])
    gaps.tell()


def panel(run: RunRecord) -> Panel:
    """Test images and labelled training images of a run, one map a snapshot."""
    data, split = run.data(), run.split()
    shown = evenly(torch.arange(len(data.test)), len(data.test) if len(data.test) <= MOST else SAMPLE)
    ringed = evenly(torch.arange(len(split.labeled)), LABELED)
    pixels = torch.cat([data.test.pixels[shown], data.train.pixels[split.labeled[ringed]]])
    layouts: dict[int, Points] = {}
    for path in run.snapshots:
        snapshot = run.snapshot(path)
        network = snapshot.average if run.settings.train.evaluated == "average" else snapshot.online
        feature = F.normalize(look(network, pixels).feature, dim=-1).cpu().numpy()
        layouts[snapshot.step] = tsne(feature, next(reversed(layouts.values()), None))
    return Panel(
        f"embedding-{slug(run.name)}",
        f"Feature space, {run.name}",
        f"t-SNE (perplexity {PERPLEXITY:g}) of the unit-length features of {len(shown):,} test images, coloured by "
        f"class, and of {len(ringed)} of {len(split.labeled)} labelled training images, ringed, coloured by the given "
        f"label. Each map starts from the one before; distances between far groups mean little. {run.describe()}, "
        f"{run.settings.train.evaluated} network.",
        draw(layouts, data.test.labels[shown].numpy(), split.labels[ringed].numpy(), data),
    )


def tsne(feature: Points, start: Points | None = None) -> Points:
    """Features (N, D) as points of the plane (N, 2), from the principal components or from an earlier layout."""
    from sklearn.manifold import TSNE

    init: Any = "pca"
    if start is not None:
        init = (start - start.mean(0)) / start[:, 0].std() * 1e-4  # the spread with which t-SNE starts
    perplexity = min(PERPLEXITY, (len(feature) - 1) / 3)
    points: Points = TSNE(perplexity=perplexity, init=init, random_state=SEED).fit_transform(feature)
    return points


@house_style()
def draw(layouts: dict[int, Points], truth: NDArray[np.int64], given: NDArray[np.int64], data: DataSet) -> Figure:
    """Maps side by side."""
    figure = new_figure(3 * len(layouts), 3.1)
    for axes, (step, points) in zip(figure.subplots(1, len(layouts), squeeze=False)[0], layouts.items(), strict=True):
        test, labeled = points[: len(truth)], points[len(truth) :]
        scatter(axes, test, truth, s=7, linewidth=0, alpha=0.75, rasterized=True)
        scatter(axes, labeled, given, s=15, edgecolor=FOREGROUND, linewidth=0.9, zorder=3)
        axes.set(xticks=[], yticks=[], title=f"step {step:,}")
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.1)
        axes.spines[:].set(visible=True, alpha=0.3)
    if len(data.classes) <= MANY:
        dots = {
            name: Line2D([], [], color=class_color(number), marker=mark(number), linewidth=0, markersize=5)
            for number, name in enumerate(data.classes)
        }
        legend(figure, dots)
    return figure


def scatter(axes: Axes, points: Points, numbers: NDArray[np.int64], **look: Any) -> None:
    """Points with the colours and marks of their classes."""
    marks = np.array([mark(number) for number in numbers])
    for shape in dict.fromkeys(marks):
        chosen = marks == shape
        colors = [class_color(number) for number in numbers[chosen]]
        axes.scatter(points[chosen, 0], points[chosen, 1], c=colors, marker=shape, **look)


def mark(number: int) -> str:
    """The mark of a class: another one where colours repeat."""
    return MARKS[number // len(CLASS_COLORS) % len(MARKS)]
