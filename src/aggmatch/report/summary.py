"""How runs came out: the figures of each, how sure they are, and what they mean in one sentence."""

import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aggmatch.errors import AggMatchError
from aggmatch.runs.stored import RunRecord, conditions, grouped
from aggmatch.runs.summary import LAST_EVALUATIONS
from aggmatch.tables import plural, show_mean

NETWORKS = {"average": "averaged network", "online": "trained network"}
"""Value of `train.evaluated` → what the network is called."""
NORMAL_QUANTILE = 1.959964
"""Half the width, in standard deviations, of the middle 95 % of a normal distribution."""


class Interval(NamedTuple):
    """Two bounds in percent."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.1f} to {self.high:.1f} %"


def wilson(right: int, images: int) -> Interval:
    """Wilson's 95 % interval of a share that was measured as `right` out of `images`, in percent.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n): unlike p ± z·s it stays within 0 and
    100 % and holds for few images.
    """
    share, z = right / images, NORMAL_QUANTILE
    spread = z * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
    middle, scale = share + z**2 / (2 * images), 1 + z**2 / images
    return Interval(100 * max(middle - spread, 0) / scale, 100 * min((middle + spread) / scale, 1))


@dataclass(frozen=True)
class Standing:
    """How far a run has come and how well it does there."""

    finished: bool
    labels: int
    """Number of labelled images."""
    steps: int
    """Steps of the whole run."""
    step: int
    """The last step that was logged."""
    network: str
    """What the evaluated network is called."""
    accuracy: float | None
    """Test accuracy in percent at the last evaluation; None before the first."""
    evaluated_at: int | None
    """Step of that evaluation."""
    median: float | None
    """Median of the last evaluations in percent."""
    evaluations: int
    """Of how many, by the log."""
    images: int | None
    """Number of test images; None where the data set is not at hand."""
    precision: float | None
    """Share of right pseudo labels in percent at the last log step, each counted by its weight; None where unknown."""
    coverage: float | None
    """Their mean weight in percent."""
    seconds: float | None
    """Time spent training."""

    @property
    def right(self) -> int | None:
        """Number of test images that are classified correctly."""
        return None if self.accuracy is None or not self.images else round(self.accuracy * self.images / 100)

    @property
    def interval(self) -> Interval | None:
        """95 % interval of the accuracy, as far as the choice of test images goes."""
        return None if self.right is None or not self.images else wilson(self.right, self.images)


def standing(run: RunRecord) -> Standing:
    """The figures of a run: of its summary once it is finished, of its log before."""
    facts = run.summary or provisional(run)
    # With nothing kept, or where nobody knows the truth, there is no precision.
    counted = facts.get("pseudo_coverage", 0) > 0 and "pseudo_precision" in facts
    return Standing(
        finished=run.summary is not None,
        labels=facts["labels"],
        steps=run.settings.train.steps,
        step=facts["steps"],
        network=NETWORKS[run.settings.train.evaluated],
        accuracy=facts["accuracy"],
        evaluated_at=facts.get("evaluated_at", facts["steps"]),
        median=facts["accuracy_median_of_last_20"],
        evaluations=min(len(evaluations(run)), LAST_EVALUATIONS),
        images=test_images(run),
        precision=100 * facts["pseudo_precision"] if counted else None,
        coverage=100 * facts["pseudo_coverage"] if counted else None,
        seconds=facts["seconds"],
    )


def provisional(run: RunRecord) -> dict[str, Any]:
    """What the summary of an unfinished run can say already, from its log."""
    measured = evaluations(run)
    step, accuracy = measured[-1] if measured else (None, None)
    logged: dict[str, Any] = next((record for record in reversed(run.records) if "loss" in record), {})
    return {
        "labels": run.labels,
        "steps": run.records[-1]["step"] if run.records else 0,
        "accuracy": accuracy,
        "evaluated_at": step,
        "accuracy_median_of_last_20": (
            statistics.median(value for _, value in measured[-LAST_EVALUATIONS:]) if measured else None
        ),
        **{key: value for key, value in logged.items() if key.startswith("pseudo_")},
        "seconds": run.records[-1].get("seconds") if run.records else None,
    }


def evaluations(run: RunRecord) -> list[tuple[int, float]]:
    """Step and accuracy in percent of every evaluation in the log."""
    name = f"accuracy_{run.settings.train.evaluated}"
    return [(record["step"], record[name]) for record in run.records if name in record]


def test_images(run: RunRecord) -> int | None:
    """Number of test images; None where the data set is not at hand."""
    try:
        return len(run.data().test)
    except AggMatchError:
        return None


# Sentences --------------------------------------------------------------------------------------------------------


def verdict(run: RunRecord) -> str:
    """What a run achieved and how far that is to be trusted, in plain words."""
    now = standing(run)
    task = f"{run.data_name} from {plural(now.labels, 'label')}"
    state = f"{run.method} learnt {task}"
    if not now.finished:
        state = f"{run.method} is learning {task}, at step {now.step:,} of {now.steps:,}"
    if now.accuracy is None:
        return f"{state}; its accuracy has not been measured yet."
    sure = f" (95 % interval {now.interval})" if now.interval else ""
    sentence = (
        f"{state}: after step {now.evaluated_at:,} its {now.network} is right on {now.accuracy:.2f} % "
        f"{of_images(now.images)}{sure}."
    )
    if now.precision is None:
        return sentence
    share = f"{now.precision:.1f} % of the pseudo labels"
    if now.finished:
        return f"{sentence} At the end, {share} it learnt from were right."
    return f"{sentence} At present, {share} it learns from are right."


def of_images(count: int | None) -> str:
    """The test images that a share is of."""
    return f"of {count:,} test images" if count else "of the test images"


def verdict_of_several(runs: Sequence[RunRecord]) -> str:
    """How kinds of runs rank, condition by condition: mean ± sample deviation where there are several of a kind."""
    sentences = [ranking(condition, members) for condition, members in conditions(runs).items()]
    parts = [list(grouped(members).values()) for members in conditions(runs).values()]
    ranked = [len(kind) for kinds in parts if len(kinds) > 1 for kind in kinds]
    if 1 in ranked:
        single = "One run each" if set(ranked) == {1} else "Some are single runs"
        sentences.append(f"{single}: with other labels or another seed they may rank differently.")
    return " ".join(sentences)


def ranking(condition: str, members: Sequence[RunRecord]) -> str:
    """How kinds of runs under one condition rank."""
    measured = [(name, values) for name, group in grouped(members).items() if (values := accuracies(group))]
    if not measured:
        return f"On {condition}, nothing has been measured yet."
    (first, best), *others = sorted(measured, key=lambda pair: -statistics.mean(pair[1]))
    then = "".join(f", {name} on {mean_and_spread(values)}" for name, values in others)
    share = of_images(test_images(members[0])) + ("" if all(run.summary for run in members) else " so far")
    return f"On {condition}, {first} is right on {mean_and_spread(best)} {share}{then}."


def accuracies(group: Sequence[RunRecord]) -> list[float]:
    """Accuracies in percent of those runs that have been evaluated."""
    return [value for run in group if (value := standing(run).accuracy) is not None]


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation in percent, and of how many where more than one."""
    return f"{show_mean(values)} %" + (f" ({len(values)} runs)" if len(values) > 1 else "")


# Pairs ------------------------------------------------------------------------------------------------------------


def pairs(runs: Sequence[RunRecord]) -> Iterator[tuple[RunRecord, RunRecord]]:
    """Under each condition, the finished run of the highest accuracy with the highest of every other kind.

    Both learnt from the same labels. Of several draws of the labels the one on which most kinds were trained is taken.
    """
    for members in conditions([run for run in runs if run.summary]).values():
        draws: dict[str, list[RunRecord]] = {}
        for run in members:
            draws.setdefault(json.dumps(run.drawn, sort_keys=True), []).append(run)
        first, *others = max(map(highest, draws.values()), key=lambda kinds: (len(kinds), final(kinds[0])))
        yield from ((first, other) for other in others)


def highest(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """The finished run of the highest accuracy of each kind, highest first."""
    return sorted((max(group, key=final) for group in grouped(runs).values()), key=final, reverse=True)


def final(run: RunRecord) -> float:
    """Accuracy in percent of a finished run."""
    assert run.summary is not None
    return float(run.summary["accuracy"])
