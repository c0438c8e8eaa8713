"""Mean attention of images of each class to stored examples of each class, at each snapshot.

Shape suffixes: B queries, Q stored examples, D features, Y classes.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from matplotlib.figure import Figure as Drawing
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.functional import one_hot
from aggmatch.inference import Snapshot
from aggmatch.methods.base import Explainer
from aggmatch.report.classes import name_classes
from aggmatch.report.figure import PHONE, Panel, Plot, each, heat_map, house_style, new_figure, slug
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import evenly, explained_runs, pseudo_labels_at
from aggmatch.runs.stored import StoredRun

IMAGES = 1000
"""Unlabelled images whose attention is averaged."""
BATCH = 100
"""Queries whose attention to every example is held at once."""


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for each run that explains its pseudo labels."""
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
        plots.append(Plot(f"step-{found.step}", draw_maps(maps, run.data().classes), f"Step {found.step:,}"))
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
def draw_maps(maps: Mapping[str, NDArray[np.float32]], classes: Sequence[str]) -> Drawing:
    """Maps of one snapshot below each other, with one scale."""
    figure = new_figure(PHONE, 2.6 * len(maps) + 0.3)
    places = figure.subplots(len(maps), 1, squeeze=False)[:, 0]
    for axes, (term, values) in zip(places, maps.items(), strict=True):
        image = heat_map(axes, values, power=0.5)
        axes.set_title(f"{'all terms' if term == 'all' else term}: {np.nanmean(values.diagonal()):.2f}")
        axes.set_ylabel("true class of the image")
        name_classes(axes, classes)
    places[-1].set_xlabel("class of the stored example")
    bar = figure.colorbar(image, ax=places, location="right", shrink=0.9 / len(maps), anchor=(0, 1), aspect=30)
    bar.set_ticks([0, 0.05, 0.25, 0.5, 1], labels=["0", "0.05", "0.25", "0.5", "1"])
    bar.outline.set_alpha(0.3)
    return figure


FIGURE = Figure(draw, chapter="attention", needs="snapshots of a method that explains itself")
