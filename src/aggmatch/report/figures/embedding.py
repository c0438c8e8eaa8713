"""Map of the feature space at several snapshots: t-SNE of test images and labelled images."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from aggmatch.inference import Snapshot
from aggmatch.report.figure import MANY, Panel, Plot, each, house_style, legend, new_figure, short, slug
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import evenly, run_network
from aggmatch.report.style import FOREGROUND, class_color, class_mark
from aggmatch.runs.stats import first_of_groups
from aggmatch.runs.stored import StoredRun

TESTED = 500
"""Most test images shown; t-SNE of more takes too long."""
LABELED = 100
"""Most labelled images shown."""
SNAPSHOTS = 3
"""Most maps of a run."""
PERPLEXITY = 30.0
ITERATIONS = 500
SEED = 0

Points = NDArray[np.float32]


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for the first run of each group that has snapshots."""
    yield from each(embedding_panel, [run for run in first_of_groups(runs) if run.snapshots])


def embedding_panel(run: StoredRun) -> Panel:
    """Test images and labelled training images of a run, one map per snapshot."""
    data, split = run.data(), run.split()
    shown = evenly(torch.arange(len(data.test)), TESTED)
    ringed = evenly(torch.arange(len(split.labeled)), LABELED)
    pixels = torch.cat([data.test.pixels[shown], data.train.pixels[split.labeled[ringed]]])
    truth, given = data.test.labels[shown].numpy(), split.labels[ringed].numpy()
    plots: list[Plot] = []
    points = None
    for number in spaced(len(run.snapshots), SNAPSHOTS):
        snapshot = Snapshot.load(run.snapshots[number], run.settings)
        network = snapshot.average if run.settings.train.evaluated == "average" else snapshot.online
        points = tsne(F.normalize(run_network(network, pixels).feature, dim=-1).cpu().numpy(), points)
        drawing = draw_map(f"step {snapshot.step:,}", points, truth, given, data.classes)
        plots.append(Plot(f"step-{snapshot.step}", drawing))
    return Panel(
        f"embedding-{slug(run.name)}",
        f"Feature space, {run.name}",
        f"t-SNE (perplexity {PERPLEXITY:g}) of the unit-length features of {len(shown):,} of {len(data.test):,} test "
        f"images, coloured by class, and of {len(ringed)} of {len(split.labeled):,} labelled training images, ringed, "
        f"coloured by the given label. Each map starts from the previous one; distances between far groups mean "
        f"little. {run.describe()}, {run.settings.train.evaluated} network.",
        plots,
    )


def spaced(length: int, count: int) -> list[int]:
    """At most `count` of the positions 0 to length − 1, evenly spaced, the first and the last among them."""
    return sorted({round(position) for position in np.linspace(0, length - 1, min(count, length))})


def tsne(feature: Points, start: Points | None = None) -> Points:
    """Map features (N, D) to points of the plane (N, 2), starting from principal components or an earlier map.

    It computes with one thread: more would wait for each other, and the map must not depend on their number.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    init: Any = "pca"
    if start is not None:
        init = (start - start.mean(0)) / start[:, 0].std() * 1e-4  # the spread with which t-SNE starts
    perplexity = min(PERPLEXITY, (len(feature) - 1) / 3)
    with threadpool_limits(1):
        model = TSNE(perplexity=perplexity, init=init, max_iter=ITERATIONS, random_state=SEED)
        points: Points = model.fit_transform(feature)
    return points


@house_style()
def draw_map(
    title: str, points: Points, truth: NDArray[np.int64], given: NDArray[np.int64], classes: Sequence[str]
) -> Drawing:
    """Test images as dots, then labelled images as ringed dots."""
    figure = new_figure(3.3, 3.5)
    axes = figure.subplots()
    scatter(axes, points[: len(truth)], truth, s=9, linewidth=0, alpha=0.75, rasterized=True)
    scatter(axes, points[len(truth) :], given, s=16, edgecolor=FOREGROUND, linewidth=0.9, zorder=3)
    axes.set(xticks=[], yticks=[], title=title)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.1)
    axes.spines[:].set(visible=True, alpha=0.3)
    if len(classes) <= MANY:
        look: dict[str, Any] = {"linewidth": 0, "markersize": 5}
        marks = [
            Line2D([], [], color=class_color(each), marker=class_mark(each), **look) for each in range(len(classes))
        ]
        legend(figure, {short(name, 20): mark for name, mark in zip(classes, marks, strict=True)})
    return figure


def scatter(axes: Axes, points: Points, numbers: NDArray[np.int64], **look: Any) -> None:
    """Points with the colours and marks of their classes."""
    marks = np.array([class_mark(number) for number in numbers])
    for shape in dict.fromkeys(marks):
        chosen = marks == shape
        colors = [class_color(number) for number in numbers[chosen]]
        axes.scatter(points[chosen, 0], points[chosen, 1], c=colors, marker=shape, **look)


FIGURE = Figure(draw, chapter="features", needs="snapshots")
