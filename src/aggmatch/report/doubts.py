"""The pseudo labels worth a second look, explained: where the subsets disagree, and where aggregation overrules."""

from collections.abc import Iterator, Sequence

from torch import Tensor

from aggmatch.report.explain import explain_run, panel
from aggmatch.report.figure import Panel
from aggmatch.report.gaps import Gaps
from aggmatch.report.pseudo_labels import PseudoLabeled, has_queue, knows_all_classes, pseudo_labels_at
from aggmatch.runs.stored import RunRecord, first_folds

EACH = 2
"""Images shown of each kind."""


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """Explanations of doubtful pseudo labels, for the first run of each kind that has a queue."""
    gaps = Gaps()
    yield from gaps.each(doubtful, [run for run in first_folds(runs) if run.snapshots and has_queue(run)])
    gaps.tell()


def doubtful(run: RunRecord) -> Panel:
    """Explanations of a run's doubtful pseudo labels."""
    found = pseudo_labels_at(run, run.snapshots[-1], known=knows_all_classes(run))
    overruled, unsure = confidently_overruled(found, EACH), least_sure(found, EACH)
    chosen = dict.fromkeys(found.index[[*unsure.tolist(), *overruled.tolist()]].tolist())
    return panel(run, explain_run(run, list(chosen)), rule(len(found.index), len(unsure), len(overruled)))


def rule(images: int, unsure: int, overruled: int) -> str:
    """By which rule the images were chosen."""
    then = (
        f"then the {overruled} with the most consensus among those whose refined class is not the network's own"
        if overruled
        else "there is none whose refined class is not the network's own"
    )
    return f"Shown, out of {images:,}: the {unsure} with the least consensus; {then}."


def least_sure(found: PseudoLabeled, count: int) -> Tensor:
    """Positions of the images whose subsets agree least, least first; of equals the earlier."""
    return found.confidence.argsort(stable=True)[:count]


def confidently_overruled(found: PseudoLabeled, count: int) -> Tensor:
    """Positions of images whose refined class is not the network's own, most consensus first; of equals the earlier."""
    assert found.aggregated is not None
    order = found.confidence.argsort(descending=True, stable=True)
    overruled = found.own.argmax(1) != found.aggregated.probs.argmax(1)
    return order[overruled[order]][:count]
