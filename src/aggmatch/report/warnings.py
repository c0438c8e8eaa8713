"""What looks wrong with a run, each with the figures that say so and what to do about it."""

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aggmatch.methods.aggmatch.method import Config
from aggmatch.report.summary import accuracies, mean_and_spread, standing
from aggmatch.runs.stored import RunRecord, conditions, grouped, recipe_of

FALL = 0.05
"""Precision of pseudo labels that must be lost, in shares of one, before it counts as falling."""
LAG = 2.0
"""Points by which the averaged network must be behind the trained one before that is worth a word."""
PERIODS = 10
"""Parts of the log whose mean precisions are compared, so that noise of single lines does not count."""
LISTED = 8
"""Names of classes or rings that are listed before the rest is only counted."""


@dataclass(frozen=True)
class Concern:
    """Something that is off."""

    title: str
    finding: str
    """What was measured."""
    advice: str
    """What to do about it."""
    command: str = ""
    """A command that does it, where there is one."""


def concerns(run: RunRecord) -> Iterator[Concern]:
    """Everything that is off with one run, gravest first."""
    for check in (unfinished, weak_classes, falling_precision, lagging_average, unfilled_rings, few_steps):
        if found := check(run):
            yield found


def concerns_of_several(runs: Sequence[RunRecord]) -> Iterator[Concern]:
    """What is off only when runs are seen side by side."""
    if len(conditions(runs)) > 1:
        yield Concern(
            "Not everything here is comparable",
            f"The runs differ in what they learn from: {'; '.join(conditions(runs))}.",
            "Compare accuracies within one of these conditions only.",
        )
    for condition, members in conditions(runs).items():
        if found := below_supervised(condition, members):
            yield found


def unfinished(run: RunRecord) -> Concern | None:
    """The run has no result yet."""
    now = standing(run)
    if now.finished:
        return None
    return Concern(
        "The run is not finished",
        f"It has logged {now.step:,} of {now.steps:,} steps.",
        "Read every figure as a state in between. If it is not training any more, continue it:",
        f"aggmatch train --resume --out {shlex.quote(str(run.path))}",
    )


def weak_classes(run: RunRecord) -> Concern | None:
    """Classes whose accuracy is below half of the mean over classes."""
    by_class: dict[str, float] = (run.summary or {}).get("class_accuracy", {})
    mean = statistics.mean(by_class.values()) if by_class else 0.0
    weak = {name: value for name, value in by_class.items() if value < mean / 2}
    if not weak:
        return None
    return Concern(
        "Some classes are hardly recognised" if len(weak) > 1 else "A class is hardly recognised",
        f"{listed([f'{name}: {value:.1f} %' for name, value in weak.items()])}; the mean over classes is {mean:.2f} %.",
        "The overall accuracy hides this. See below what such images are taken for, check the labels of both classes, "
        "and label a few more images of them.",
    )


def falling_precision(run: RunRecord) -> Concern | None:
    """Pseudo labels were better earlier on than they are at the end."""
    periods = pseudo_label_periods(run)
    comparable = [precision for precision, coverage in periods if coverage >= periods[-1][1] / 2]
    if not comparable or (best := max(comparable)) - comparable[-1] <= FALL:
        return None
    return Concern(
        "Pseudo labels got worse during training",
        f"{100 * best:.1f} % of them were right in the best tenth of the log, "
        f"{100 * comparable[-1]:.1f} % in the last.",
        "The network may be learning its own mistakes. Raise method.threshold or lower method.unlabeled_weight if the "
        "method has them, or add labels of the classes that are confused.",
    )


def pseudo_label_periods(run: RunRecord) -> list[tuple[float, float]]:
    """Mean precision and coverage of the pseudo labels in each tenth of the log; nothing where it is too short.

    Both are kept because a method that starts with a few sure pseudo labels loses precision as it takes in more: only
    parts of the log in which about as many counted can be compared.
    """
    lines = [record for record in run.records if "pseudo_precision" in record and record["pseudo_coverage"] > 0]
    if len(lines) < PERIODS:
        return []
    bounds = [number * len(lines) // PERIODS for number in range(PERIODS + 1)]
    return [
        (mean_of(lines[low:high], "pseudo_precision"), mean_of(lines[low:high], "pseudo_coverage"))
        for low, high in pairwise(bounds)
    ]


def mean_of(lines: Sequence[Mapping[str, float]], name: str) -> float:
    """Mean of one value over lines of the log."""
    return statistics.mean(line[name] for line in lines)


def lagging_average(run: RunRecord) -> Concern | None:
    """The averaged network is the result but has not caught up with the trained one."""
    if not run.summary or run.settings.train.evaluated != "average":
        return None
    average, online = run.summary["accuracy_average"], run.summary["accuracy_online"]
    if online - average <= LAG:
        return None
    return Concern(
        "The averaged network lags behind",
        f"It is right on {average:.2f} % of the test images, the trained network on {online:.2f} %.",
        f"The average (optim.average={run.settings.optim.average}) reaches back too far for so few steps: train "
        "longer, or lower optim.average.",
    )


def unfilled_rings(run: RunRecord) -> Concern | None:
    """Rings of AggMatch's queue that never held as many images as they have slots for."""
    method = run.settings.method
    fill: list[int] = next((record["queue_fill"] for record in reversed(run.records) if "queue_fill" in record), [])
    if not run.summary or not isinstance(method, Config) or not method.class_balanced:
        return None
    classes = list(run.summary["class_accuracy"])
    short = [f"{classes[number]}: {count}" for number, count in enumerate(fill) if count < method.slots]
    if not short:
        return None
    return Concern(
        "Part of the queue never filled",
        f"Each class has a ring of {method.slots} slots, but {len(short)} of {len(fill)} ended with fewer images: "
        f"{listed(short)}.",
        "Few images of these classes were predicted with confidence, so pseudo labels rest on few examples. Lower "
        "method.slots or method.threshold, or train longer.",
    )


def few_steps(run: RunRecord) -> Concern | None:
    """The run is shorter than what its method was tuned for."""
    steps, usual = run.settings.train.steps, recipe_of(run).train.steps
    if steps >= usual:
        return None
    return Concern(
        "Shorter than the recipe",
        f"It trains for {steps:,} steps; the recipe of {run.method} on {run.data_name} has {usual:,}.",
        f"Do not compare with published figures. For the whole recipe, train without --steps or with --steps {usual}.",
    )


def below_supervised(condition: str, members: Sequence[RunRecord]) -> Concern | None:
    """Methods that gained nothing from the unlabelled images."""
    groups = grouped([run for run in members if run.summary])
    scores = {name: accuracies(group) for name, group in groups.items()}
    floors = [scores[name] for name, group in groups.items() if group[0].method == "supervised"]
    if not floors:
        return None
    floor = max(floors, key=statistics.mean)
    worse = [
        f"{name} with {mean_and_spread(scores[name])}"
        for name, group in groups.items()
        if group[0].method != "supervised" and statistics.mean(scores[name]) < statistics.mean(floor)
    ]
    if not worse:
        return None
    return Concern(
        "Unlabelled images did not help",
        f"On {condition}, training on the labels alone reaches {mean_and_spread(floor)}, more than {listed(worse)}.",
        "Pseudo labels can do harm, above all with wrong or very uneven labels. Compare their precision below, look at "
        "the labelled images, and repeat on other folds before you conclude.",
    )


def listed(items: Sequence[str]) -> str:
    """The first items and the number of the others."""
    rest = len(items) - LISTED
    return ", ".join(items[:LISTED]) + (f" and {rest} more" if rest > 0 else "")
