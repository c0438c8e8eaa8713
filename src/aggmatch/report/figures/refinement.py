"""Class distributions of single images before and after aggregation."""

from collections.abc import Iterator, Sequence

from matplotlib.figure import Figure as Drawing

from aggmatch.data import DataSet
from aggmatch.report.classes import draw_distributions
from aggmatch.report.figure import PHONE, Panel, Plot, each, house_style, new_figure, picture, short, slug
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import (
    Changes,
    PseudoLabeled,
    changes_of,
    evenly,
    explained_runs,
    most_changed,
    pseudo_labels_at,
)
from aggmatch.runs.stored import StoredRun, snapshot_step

EXAMPLES = 3
"""Images shown of each kind of change."""


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for each run that explains its pseudo labels."""
    yield from each(refinement_panel, explained_runs(runs))


def examples(changed: Changes, count: int = EXAMPLES) -> dict[str, list[int]]:
    """Positions of at most `count` images by kind of change; of those kept, evenly spaced ones."""
    kinds = {
        "corrected": changed.corrected[:count],
        "spoiled": changed.spoiled[:count],
        "kept": evenly(changed.kept, count),
    }
    return {kind: positions.tolist() for kind, positions in kinds.items() if len(positions)}


def refinement_panel(run: StoredRun) -> Panel:
    """One plot per kind of change, from the snapshot with most changes."""
    by_snapshot = changes_of(run)
    path = most_changed(by_snapshot)
    found, data = pseudo_labels_at(run, path), run.data()
    counts = "; ".join(
        f"step {snapshot_step(path):,}: {len(changed.corrected)} and {len(changed.spoiled)}"
        for path, changed in by_snapshot.items()
    )
    return Panel(
        f"refinement-{slug(run.name)}",
        f"Before and after aggregation, {run.name}",
        f"Class distributions p and p̄ of unlabelled training images; below each, the probability of the true class. Of "
        f"{len(found.index):,} pseudo labels, aggregation corrected and spoiled (made wrong), at {counts}. Shown, from "
        f"step {found.step:,} with the most such changes: the corrected ones with the largest gain of the true class, "
        f"the spoiled ones with its largest loss, and evenly spaced ones whose class was kept. {run.describe()}; plain "
        f"images, online network.",
        [
            Plot(kind, draw_refinement(kind, found, positions, data))
            for kind, positions in examples(by_snapshot[path]).items()
        ],
    )


@house_style()
def draw_refinement(kind: str, found: PseudoLabeled, positions: Sequence[int], data: DataSet) -> Drawing:
    """A row for each image: the picture, its distribution before, and after."""
    assert found.aggregated
    figure = new_figure(PHONE, 1.6 * len(positions) + 0.2)
    rows = figure.subplots(len(positions), 3, squeeze=False, width_ratios=(1.1, 1, 1))
    for (image, *charts), position in zip(rows, positions, strict=True):
        truth = int(found.truth[position])
        distributions = [found.own[position].numpy(), found.aggregated.probs[position].numpy()]
        picture(image, data.train.pixels[found.index[position]].numpy())
        image.set_xlabel(short(data.classes[truth]), size=8)
        draw_distributions(charts, distributions, truth, data.classes)
        for axes, probs in zip(charts, distributions, strict=True):
            axes.set_xlabel(f"{probs[truth]:.2f}", size=8)
    for axes, title in zip(rows[0], (kind, "before, p", "after, p̄"), strict=True):
        axes.set_title(title)
    return figure


FIGURE = Figure(draw, chapter="pseudo-labels", needs="snapshots of a method that explains itself", order=10)
