"""Confident mistakes of another method that aggregation avoids."""

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
from matplotlib.figure import Figure as Drawing
from torch import Tensor

from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.report.figure import PHONE, Panel, Plot, each, house_style, new_figure, picture, short, slug
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import PseudoLabeled, explains, pseudo_labels_at
from aggmatch.report.style import FOREGROUND, RIGHT, WRONG
from aggmatch.runs.stats import grouped
from aggmatch.runs.stored import StoredRun

MISTAKES = 8
"""Most mistakes shown."""
ROWS = 4
"""Most mistakes of one plot."""
CONFIDENT = 0.95
"""Probability from which a method without a threshold of its own counts as confident."""


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for each group of runs that explain their pseudo labels, if another method has pseudo labels here."""
    looked_into = [run for run in runs if run.snapshots]
    rivals = [run for run in looked_into if not explains(run) and any("pseudo_coverage" in log for log in run.records)]
    groups = grouped([run for run in looked_into if explains(run)]).values() if rivals else []
    yield from each(lambda group: mistakes_panel(*pair_of(rivals, group)), groups)


def same_labels(run: StoredRun, other: StoredRun) -> bool:
    """Whether two runs were given the same labels on the same images."""
    if run.condition != other.condition:
        return False
    ours, theirs = run.split(), other.split()
    return all(torch.equal(getattr(ours, name), getattr(theirs, name)) for name in ("labeled", "labels", "unlabeled"))


def pair_of(rivals: Sequence[StoredRun], runs: Sequence[StoredRun]) -> tuple[StoredRun, StoredRun]:
    """The first rival and run that were given the same labels."""
    pairs = ((rival, run) for run in runs for rival in rivals if same_labels(run, rival))
    if pair := next(pairs, None):
        return pair
    names = ", ".join(run.name for run in runs)
    raise AggMatchError(f"{names} cannot be compared with another method: no other run here has the same labels.")


def corrected_mistakes(rival: PseudoLabeled, found: PseudoLabeled, threshold: float) -> tuple[Tensor, Tensor]:
    """Positions of the rival's confident mistakes, and of those that `found` has right; most confident first."""
    order_N = rival.confidence.argsort(descending=True, stable=True)
    mistakes = order_N[(~rival.right & (rival.confidence >= threshold))[order_N]]
    return mistakes, mistakes[found.right[mistakes]]


def take_turns(positions: Tensor, kind_N: Tensor) -> Tensor:
    """The same positions, the first of every kind before the second of any."""
    seen: Counter[int] = Counter()
    turns = []
    for kind in kind_N[positions].tolist():
        turns.append(seen[kind])
        seen[kind] += 1
    return positions[torch.tensor(turns, dtype=torch.long).argsort(stable=True)]


def mistakes_panel(rival: StoredRun, run: StoredRun) -> Panel:
    """Confident mistakes of a rival that the run has right, as pictures."""
    theirs, ours = (pseudo_labels_at(each, each.snapshots[-1]) for each in (rival, run))
    threshold = float(getattr(rival.settings.method, "threshold", CONFIDENT))
    mistakes, corrected = corrected_mistakes(theirs, ours, threshold)
    if not len(corrected):
        raise AggMatchError(f"There are no confident mistakes of {rival.name} that {run.name} has right.")
    pair_N = theirs.truth * theirs.probs.shape[1] + theirs.probs.argmax(1)
    spoiled = int((theirs.right & (theirs.confidence >= threshold) & ~ours.right).sum())
    shown = take_turns(corrected, pair_N)[:MISTAKES]
    names = (rival.method, run.method)
    return Panel(
        f"mistakes-{slug(run.name)}",
        f"Confident mistakes of {rival.name}, and {run.name}",
        f"Of {len(theirs.index):,} unlabelled training images, {rival.method} is sure of a wrong class (probability at "
        f"least {threshold:g}) for {len(mistakes)}; {run.method} has {len(corrected)} of these right, and is wrong on "
        f"{spoiled} of which {rival.method} is rightly sure. Shown: the corrected ones of which {rival.method} is "
        f"surest, one of every pair of classes in turn, with its probability and the confidence of {run.method}. "
        f"{run.condition}, fold {run.fold}, the same labels for both; steps {theirs.step:,} and {ours.step:,}; plain "
        f"images, online networks.",
        [
            Plot(str(number) if len(shown) > ROWS else "", draw_mistakes(theirs, ours, names, part, run.data()))
            for number, part in enumerate(shown.split(ROWS), 1)
        ],
    )


@house_style()
def draw_mistakes(
    theirs: PseudoLabeled, ours: PseudoLabeled, names: tuple[str, str], positions: Tensor, data: DataSet
) -> Drawing:
    """A row for each image: the picture, and beside it the truth and both pseudo labels."""
    figure = new_figure(PHONE, 0.85 * len(positions) + 0.1)
    for row, position in zip(
        figure.subplots(len(positions), 2, squeeze=False, width_ratios=(1, 3.2)), positions.tolist(), strict=True
    ):
        picture(row[0], data.train.pixels[theirs.index[position]].numpy())
        row[1].set_axis_off()
        lines = [(f"true class {short(data.classes[int(theirs.truth[position])])}", FOREGROUND)]
        for found, name, mark, color in zip((theirs, ours), names, "✗✓", (WRONG, RIGHT), strict=True):
            label = short(data.classes[int(found.probs[position].argmax())])
            lines.append((f"{mark} {short(name)}: {label} ({found.confidence[position]:.2f})", color))
        for (text, color), height in zip(lines, (0.8, 0.5, 0.2), strict=True):
            row[1].text(0, height, text, color=color, va="center", size=8.5)
    return figure


FIGURE = Figure(draw, chapter="pseudo-labels", needs="snapshots of two methods with the same labels", order=20)
