"""Figures of features: attention between classes, and maps of the feature space.

Shape suffixes: B queries, Q stored examples, D features, Y classes, N batches of S images.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.errors import AggMatchError
from aggmatch.functional import one_hot
from aggmatch.inference import Snapshot
from aggmatch.methods.base import Explainer
from aggmatch.report.figure import (
    MANY,
    PHONE,
    Panel,
    Plot,
    class_color,
    class_mark,
    each,
    heat_map,
    house_style,
    legend,
    name_classes,
    new_figure,
    short_names,
    slug,
)
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import (
    evenly,
    explained_runs,
    pseudo_labels_at,
    run_network,
    unlabeled_images,
    with_snapshots,
)
from aggmatch.report.style import FOREGROUND
from aggmatch.runs.stored import StoredRun

# Attention ------------------------------------------------------------------------------------------------------------


IMAGES = 1000
"""Unlabelled images whose attention is averaged."""
BATCH = 100
"""Queries whose attention to every example is held at once."""


def attention(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Mean attention of images of each class to stored examples of each class, at each snapshot.

    One panel for each run that explains its pseudo labels.
    """
    yield from each(attention_panel, explained_runs(runs))


def attention_panel(run: StoredRun) -> Panel:
    """One plot per snapshot."""
    plots = []
    for path in run.snapshots:
        found = pseudo_labels_at(run, path)
        shown = evenly(torch.arange(len(found.index)), IMAGES)
        explainer = Snapshot.load(path, run.settings).method.explainer()
        assert explainer, "the method explains its pseudo labels"
        assert found.feature is not None
        maps = class_attention(explainer, found.feature[shown], found.own[shown], found.truth[shown])
        drawing = draw_maps(maps, run.data().classes, "class of the stored example")
        plots.append(Plot(f"step-{found.step}", drawing, f"Step {found.step:,}"))
    return Panel(
        f"attention-{slug(run.name)}",
        f"Attention between classes, {run.name}",
        f"Mean attention of {len(shown):,} unlabelled images (rows: true class) to stored examples (columns: class "
        f"under which an example is stored), by each term of the similarity alone and by all of them as the method "
        f"adds them up. Rows sum to 1; above each map, the mean share within the class. {run.describe()}; plain "
        f"images, online network.",
        plots,
    )


@torch.no_grad()
def class_attention(
    explainer: Explainer, feature_BD: Tensor, probs_BY: Tensor, truth_B: Tensor
) -> dict[str, NDArray[np.float32]]:
    """Mean attention between classes by each term of the similarity, and by all if there are several; each (Y, Y)."""
    label_Q, classes = explainer.examples().label, probs_BY.shape[1]
    device, stored_QY = label_Q.device, one_hot(label_Q, classes).float()
    shares: dict[str, list[Tensor]] = {}
    for some_BD, some_BY in zip(feature_BD.split(BATCH), probs_BY.split(BATCH), strict=True):
        attention = explainer.attention(some_BD.to(device), some_BY.to(device))
        for name, share_BQ in attention.share.items():
            shares.setdefault(name, []).append((share_BQ @ stored_QY).cpu())
    if len(shares) == 2:  # a single term, which is all
        del shares["all"]
    return {name: mean_by_class(torch.cat(parts), truth_B, classes).numpy() for name, parts in shares.items()}


def mean_by_class(to_class_BY: Tensor, query_class_B: Tensor, classes: int) -> Tensor:
    """Mean over the queries of each class of their attention to the examples of each class, (Y, Y).

    Rows (true class of the query) sum to 1; those of a class without queries are NaN.
    """
    of_class_YB = one_hot(query_class_B, classes).T.float()
    return of_class_YB @ to_class_BY / of_class_YB.sum(1, keepdim=True)


@house_style()
def draw_maps(maps: Mapping[str, NDArray[np.float32]], classes: Sequence[str], columns: str) -> Drawing:
    """Maps of one snapshot below each other, with one scale. columns: what the columns stand for."""
    figure = new_figure(PHONE, 2.6 * len(maps) + 0.3)
    places = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
    for axes, (term, values) in zip(places, maps.items(), strict=True):
        image = heat_map(axes, values, power=0.5)
        axes.set_title(f"{'all terms' if term == 'all' else term}: {np.nanmean(values.diagonal()):.2f}")
        axes.set_ylabel("true class of the image")
        name_classes(axes, classes, side=1.5)
    places[-1].set_xlabel(columns)
    bar = figure.colorbar(image, ax=places, location="right", shrink=0.9 / len(maps), anchor=(0, 1), aspect=30)
    bar.set_ticks([0, 0.05, 0.25, 0.5, 1], labels=["0", "0.05", "0.25", "0.5", "1"])
    bar.outline.set_alpha(0.3)
    return figure


# Attention within a batch ---------------------------------------------------------------------------------------------


TEMPERATURE = 0.05
"""Temperature of the cosine, as in AggMatch's feature term."""


def batch_attention(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Mean attention of images of each class to the other images of their batch, for methods with and without a memory.

    One panel for the first run of each group that has snapshots; of several groups, only the last snapshots.
    """
    shown = with_snapshots(runs)
    yield from each(lambda run: batch_attention_panel(run, SNAPSHOTS if len(shown) == 1 else 1), shown)


def batch_attention_panel(run: StoredRun, maps: int) -> Panel:
    """One plot per snapshot, at most `maps`."""
    data, train = run.data(), run.settings.train
    index = evenly(unlabeled_images(data, run.split(), known=True), IMAGES)
    if not len(index):
        raise AggMatchError(f"{data.name} has no unlabelled images of known class whose attention could be shown.")
    index = index[torch.randperm(len(index), generator=torch.Generator().manual_seed(SEED))]
    size = train.batch * train.unlabeled_ratio
    plots = []
    for number in spaced(len(run.snapshots), maps):
        snapshot = Snapshot.load(run.snapshots[number], run.settings)
        feature = run_network(snapshot.online, data.train.pixels[index]).feature.cpu()
        values = attention_within(feature, data.train.labels[index], len(data.classes), size)
        drawing = draw_maps({"features": values.numpy()}, data.classes, "class of the other image")
        plots.append(Plot(f"step-{snapshot.step}", drawing, f"Step {snapshot.step:,}"))
    return Panel(
        f"batch-attention-{slug(run.name)}",
        f"Attention within a batch, {run.name}",
        f"Mean attention of {len(index):,} unlabelled images (rows: true class) to the other images of random batches "
        f"of {min(size, len(index))} (columns: true class), softmax of the cosine of features / {TEMPERATURE:g}. It "
        f"needs no memory, so all methods can be compared by it. Rows sum to 1; above each map, the mean share within "
        f"the class. {run.describe()}; plain images, online network.",
        plots,
    )


def attention_within(feature_BD: Tensor, class_B: Tensor, classes: int, size: int) -> Tensor:
    """Mean attention between classes within whole batches of `size` images, in the given order, (Y, Y).

    If there are fewer images, they are one batch.
    """
    size = min(size, len(class_B))
    used = len(class_B) // size * size
    unit_NSD = F.normalize(feature_BD[:used], dim=-1).unflatten(0, (-1, size))
    score_NSS = unit_NSD @ unit_NSD.mT / TEMPERATURE
    share_NSS = score_NSS.masked_fill(torch.eye(size, dtype=torch.bool), -torch.inf).softmax(-1)
    of_class_NSY = one_hot(class_B[:used], classes).float().unflatten(0, (-1, size))
    return mean_by_class((share_NSS @ of_class_NSY).flatten(0, 1), class_B[:used], classes)


# Embedding ------------------------------------------------------------------------------------------------------------


TESTED = 500
"""Most test images shown; t-SNE of more takes too long."""
LABELED = 100
"""Most labelled images shown."""
SNAPSHOTS = 8
"""Most maps of a run that is shown alone."""
PERPLEXITY = 30.0
ITERATIONS = 500
SEED = 0
COLLAPSED = 1e-6
"""Largest difference between features of a run whose network maps all images to the same ones."""

Points = NDArray[np.float32]


def embedding(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """Map of the feature space at several snapshots: t-SNE of test images and labelled images.

    One panel for the first run of each group that has snapshots; of several groups, only the last snapshots.
    """
    shown = with_snapshots(runs)
    yield from each(lambda run: embedding_panel(run, SNAPSHOTS if len(shown) == 1 else 1), shown)


def embedding_panel(run: StoredRun, maps: int) -> Panel:
    """Test images and labelled training images of a run, at most `maps` maps of different snapshots."""
    data, split = run.data(), run.split()
    shown = evenly(torch.arange(len(data.test)), TESTED)
    ringed = evenly(torch.arange(len(split.labeled)), LABELED)
    pixels = torch.cat([data.test.pixels[shown], data.train.pixels[split.labeled[ringed]]])
    truth, given = data.test.labels[shown].numpy(), split.labels[ringed].numpy()
    plots: list[Plot] = []
    points = None
    for number in spaced(len(run.snapshots), maps):
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
    """At most `count` of the positions 0 to length − 1, evenly spaced; the last one is always among them."""
    return sorted({round(position) for position in np.linspace(length - 1, 0, min(count, length))})


def tsne(feature: Points, start: Points | None = None) -> Points:
    """Map features (N, D) to points of the plane (N, 2), starting from principal components or an earlier map.

    If all features are equal, all points are. It computes with one thread: more would wait for each other, and the map
    must not depend on their number.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]  # comes with scikit-learn

    if not np.isfinite(feature).all():
        raise AggMatchError("The feature space cannot be shown: a feature is not finite.")
    if np.ptp(feature, axis=0).max() < COLLAPSED:  # t-SNE divides by the spread
        return np.zeros((len(feature), 2), np.float32)
    if feature.shape[1] == 1:
        feature = np.pad(feature, ((0, 0), (0, 1)))  # there are no two principal components of one feature
    init: Any = "pca"
    if start is not None and start[:, 0].std() > 0:
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
        legend(figure, dict(zip(short_names(classes, 20), marks, strict=True)))
    return figure


def scatter(axes: Axes, points: Points, numbers: NDArray[np.int64], **look: Any) -> None:
    """Points with the colours and marks of their classes."""
    marks = np.array([class_mark(number) for number in numbers])
    for shape in dict.fromkeys(marks):
        chosen = marks == shape
        colors = [class_color(number) for number in numbers[chosen]]
        axes.scatter(points[chosen, 0], points[chosen, 1], c=colors, marker=shape, **look)


FIGURES = {
    "attention": Figure(attention, chapter="attention", needs="snapshots of a method that explains itself"),
    "batch_attention": Figure(batch_attention, chapter="attention", needs="snapshots", order=110),
    "embedding": Figure(embedding, chapter="features", needs="snapshots"),
}
