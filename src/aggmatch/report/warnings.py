"""Warnings about runs: what looks wrong, the numbers that show it, and what to do about it."""

import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from aggmatch.methods import load_method
from aggmatch.report.summary import accuracies
from aggmatch.runs.stats import conditions, grouped, mean_and_spread, recipe_of
from aggmatch.runs.stored import StoredRun

PRECISION_LOSS = 0.05
"""Loss of pseudo-label precision, as a share of one, above which it counts as falling."""
AVERAGE_LAG = 2.0
"""Points by which the averaged network must be behind the trained one for a warning."""
PERIODS = 10
"""Parts of the log whose mean precisions are compared, so that the noise of single lines does not count."""
SURE, RIGHT = 0.6, 0.4
"""Coverage of pseudo labels from which, and precision below which, a method is sure before it is right."""
LISTED = 8
"""Number of classes or rings that are listed by name; the rest is counted."""


@dataclass(frozen=True)
class RunWarning:
    """Something that looks wrong."""

    title: str
    finding: str
    """What was measured."""
    advice: str
    """What to do about it."""
    command: str = ""
    """A command that does it, if there is one."""


def warnings_of(run: StoredRun) -> Iterator[RunWarning]:
    """All warnings about one run, the most serious first."""
    checks = unfinished, sure_too_early, weak_classes, falling_precision, lagging_average, unfilled_memory, few_steps
    for check in checks:
        if found := check(run):
            yield found


def warnings_of_several(runs: Sequence[StoredRun]) -> Iterator[RunWarning]:
    """Warnings about the comparison of runs."""
    if len(conditions(runs)) > 1:
        yield RunWarning(
            "Not everything here is comparable",
            f"The runs differ in what they learn from: {'; '.join(conditions(runs))}.",
            "Compare accuracies within one of these conditions only.",
        )
    for condition, members in conditions(runs).items():
        if found := below_baseline(condition, members):
            yield found


def unfinished(run: StoredRun) -> RunWarning | None:
    """The run has no final result yet."""
    if run.finished:
        return None
    return RunWarning(
        "The run is not finished",
        f"It has logged {run.steps:,} of {run.settings.train.steps:,} steps.",
        "Its numbers are preliminary. If it is not training any more, continue it:",
        f"aggmatch train --resume --out {shlex.quote(str(run.path))}",
    )


def weak_classes(run: StoredRun) -> RunWarning | None:
    """Classes whose accuracy is below half of the mean over classes."""
    by_class = run.class_accuracy
    mean = statistics.mean(by_class.values()) if by_class else 0.0
    weak = {name: value for name, value in by_class.items() if value < mean / 2}
    if not weak:
        return None
    return RunWarning(
        "Some classes are hardly recognised" if len(weak) > 1 else "A class is hardly recognised",
        f"{listed([f'{name}: {value:.1f} %' for name, value in weak.items()])}; the mean over classes is {mean:.2f} %.",
        "The overall accuracy hides this. See below which classes they are mistaken for, check the labels of both, and "
        "label a few more images of them.",
    )


def falling_precision(run: StoredRun) -> RunWarning | None:
    """Pseudo labels were better earlier than at the end."""
    periods = pseudo_label_periods(run)
    comparable = [precision for precision, coverage in periods if coverage >= periods[-1][1] / 2]
    if not comparable or (best := max(comparable)) - comparable[-1] <= PRECISION_LOSS:
        return None
    return RunWarning(
        "Pseudo labels got worse during training",
        f"{100 * best:.1f} % of them were right in the best tenth of the log, "
        f"{100 * comparable[-1]:.1f} % in the last.",
        "The network may be learning its own mistakes. Raise method.threshold or lower method.unlabeled_weight if the "
        "method has them, or add labels of the classes that are confused.",
    )


def sure_too_early(run: StoredRun) -> RunWarning | None:
    """Most of the weight goes to pseudo labels of which most are wrong: learning from them confirms them."""
    lines = [record for record in run.records if "pseudo_precision" in record]
    early = [line for line in lines if line["pseudo_coverage"] >= SURE and line["pseudo_precision"] < RIGHT]
    if not early:
        return None
    worst = min(early, key=lambda line: line["pseudo_precision"])
    return RunWarning(
        "Sure before it is right",
        f"At step {worst['step']:,}, pseudo labels have {100 * worst['pseudo_coverage']:.0f} % of their full weight, "
        f"but only {100 * worst['pseudo_precision']:.0f} % of it is on right ones.",
        "Learning from wrong pseudo labels confirms them, and a run may never recover. Try --recipe cold-start, or "
        "label a few more images of each class.",
    )


def pseudo_label_periods(run: StoredRun) -> list[tuple[float, float]]:
    """Mean precision and coverage of the pseudo labels in each tenth of the log; empty if the log is too short.

    Only periods with similar coverage can be compared: a method that starts with a few confident pseudo labels loses
    precision as it accepts more.
    """
    lines = [record for record in run.records if "pseudo_precision" in record and record["pseudo_coverage"] > 0]
    if len(lines) < PERIODS:
        return []
    bounds = [number * len(lines) // PERIODS for number in range(PERIODS + 1)]
    precision, coverage = (
        [statistics.mean(line[name] for line in lines[low:high]) for low, high in pairwise(bounds)]
        for name in ("pseudo_precision", "pseudo_coverage")
    )
    return list(zip(precision, coverage, strict=True))


def lagging_average(run: StoredRun) -> RunWarning | None:
    """The averaged network gives the result but has not caught up with the trained one."""
    if not run.summary or run.accuracy is None or run.settings.train.evaluated != "average":
        return None
    average, online = run.summary["accuracy_average"], run.summary["accuracy_online"]
    if online - average <= AVERAGE_LAG:
        return None
    return RunWarning(
        "The averaged network lags behind",
        f"It is right on {average:.2f} % of the test images, the trained network on {online:.2f} %.",
        f"The average (optim.average={run.settings.optim.average}) reaches back too far for so few steps: train "
        "longer, or lower optim.average.",
    )


def unfilled_memory(run: StoredRun) -> RunWarning | None:
    """Rings of the method's memory, one for each class, that never filled."""
    classes = list(run.class_accuracy)
    slots = load_method(run.settings.method_name).memory_slots(run.settings.method, len(classes))
    fill: list[int] = next((record["queue_fill"] for record in reversed(run.records) if "queue_fill" in record), [])
    if not classes or not len(classes) == len(slots) == len(fill):
        return None
    rings = list(zip(classes, fill, slots, strict=True))
    short = [f"{name}: {count}" for name, count, size in rings if count < size]
    if not short:
        return None
    return RunWarning(
        "Part of the queue never filled",
        f"Each class has a ring of {slots[0]} slots, but {len(short)} of {len(fill)} ended with fewer images: "
        f"{listed(short)}.",
        "Few images of these classes were predicted with confidence, so pseudo labels rest on few examples. Use fewer "
        "slots or a lower threshold (method.slots, method.threshold), or train longer.",
    )


def few_steps(run: StoredRun) -> RunWarning | None:
    """The run is shorter than its recipe."""
    steps, usual = run.settings.train.steps, recipe_of(run.settings).train.steps
    if steps >= usual:
        return None
    return RunWarning(
        "Shorter than the recipe",
        f"It trains for {steps:,} steps; its recipe has {usual:,}.",
        f"Do not compare it with published results. For the whole recipe, train without --steps or with "
        f"--steps {usual}.",
    )


def below_baseline(condition: str, members: Sequence[StoredRun]) -> RunWarning | None:
    """Methods that gained nothing from the unlabelled images."""
    groups = grouped([run for run in members if run.finished and run.accuracy is not None])
    baselines = {name for name, group in groups.items() if load_method(group[0].settings.method_name).baseline}
    scores = {name: accuracies(group) for name, group in groups.items()}
    if not baselines:
        return None
    floor = max((scores[name] for name in baselines), key=statistics.mean)
    worse = [
        f"{name} with {mean_and_spread(values)}"
        for name, values in scores.items()
        if name not in baselines and statistics.mean(values) < statistics.mean(floor)
    ]
    if not worse:
        return None
    return RunWarning(
        "Unlabelled images did not help",
        f"On {condition}, training on the labels alone reaches {mean_and_spread(floor)}, more than {listed(worse)}.",
        "Pseudo labels can do harm, above all with wrong or very uneven labels. Compare their precision below, look at "
        "the labelled images, and repeat on other folds before you draw a conclusion.",
    )


def listed(items: Sequence[str]) -> str:
    """The first items and the number of the others."""
    rest = len(items) - LISTED
    return ", ".join(items[:LISTED]) + (f" and {rest} more" if rest > 0 else "")
