"""Doubtful pseudo labels, explained: subsets that disagree, and confident changes by aggregation."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from aggmatch.report.explain import explain_run, panel
from aggmatch.report.figure import Panel, each
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import PseudoLabeled, explained_runs, knows_all_classes, pseudo_labels_at
from aggmatch.runs.stored import StoredRun

EACH = 2
"""Images shown of each kind."""


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for each run that explains its pseudo labels."""
    yield from each(doubts_panel, explained_runs(runs))


def doubts_panel(run: StoredRun) -> Panel:
    """Explanations of a run's doubtful pseudo labels."""
    found = pseudo_labels_at(run, run.snapshots[-1], known=knows_all_classes(run))
    overruled, unsure = confidently_overruled(found, EACH), least_sure(found, EACH)
    chosen = dict.fromkeys(found.index[[*unsure.tolist(), *overruled.tolist()]].tolist())
    words = describe_choice(len(found.index), len(unsure), len(overruled))
    return panel(run, explain_run(run, list(chosen)), words, name="doubts", title="Doubtful labels,")


def describe_choice(images: int, unsure: int, overruled: int) -> str:
    """The rule by which the images were chosen."""
    then = (
        f"then the {overruled} with the most consensus among those whose refined class is not the network's own"
        if overruled
        else "no image has a refined class that is not the network's own"
    )
    return f"Shown, out of {images:,}: the {unsure} with the least consensus; {then}."


def least_sure(found: PseudoLabeled, count: int) -> Tensor:
    """Positions of the images with the least consensus, least first; of equals the earlier one first."""
    return found.confidence.argsort(stable=True)[:count]


def confidently_overruled(found: PseudoLabeled, count: int) -> Tensor:
    """Positions of images whose refined class is not the network's own, the most consensus first."""
    assert found.aggregated is not None
    order = found.confidence.argsort(descending=True, stable=True)
    overruled = found.own.argmax(1) != found.aggregated.probs.argmax(1)
    return order[overruled[order]][:count]


FIGURE = Figure(draw, chapter="pseudo-labels", needs="snapshots of a method that explains itself", order=30)
