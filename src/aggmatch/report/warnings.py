"""Warnings about runs: what looks wrong, the numbers that show it, and what to do about it."""

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from aggmatch.data import is_own_images
from aggmatch.methods import load_method
from aggmatch.recipes import NAMED
from aggmatch.report.summary import accuracies, test_images, test_images_changed
from aggmatch.report.test_results import accepted, known_predictions
from aggmatch.runs.stats import conditions, grouped, mean_and_spread, recipe_of, wilson
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import RunSettings
from aggmatch.tables import plural, some_of

PRECISION_LOSS = 0.05
"""Precision of pseudo labels, from 0 to 1, counts as falling if it loses more than this."""
AVERAGE_LAG = 2.0
"""Points by which the averaged network must be behind the trained one for a warning."""
PERIODS = 10
"""Parts of the log whose mean precisions are compared, so that the noise of single lines does not count."""
SURE, RIGHT = 0.6, 0.4
"""A method is sure before it is right if coverage is at least the first and precision below the second."""
TOLD_APART = 0.7
"""AUC from which the weight tells right from wrong pseudo labels."""
COLLAPSED = 3
"""A class has too many of the pseudo labels if its share is at least this many times an even share."""
CONFIDENT = (0.9, 0.95, 0.99)
"""Confidences that people rely on."""
TRUST_GAP = 0.1
"""How far the share of right predictions may be below their confidence without a warning."""
FEW = 5
"""Fewest test images for which a share is meaningful."""
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
    checks = (
        changed_test_images,
        unfinished,
        sure_too_early,
        weak_classes,
        sure_and_wrong,
        falling_precision,
        uneven_classes,
        lagging_average,
        unfilled_memory,
        few_steps,
    )
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


def changed_test_images(run: StoredRun) -> RunWarning | None:
    """The test images are not those of the run, so that its numbers and those computed now differ."""
    if not test_images_changed(run):
        return None
    return RunWarning(
        "The test images have changed since training",
        f"The accuracy of the run and its curve are of the old ones. Wrong images, accuracy by class and by confidence "
        f"and the confusion are of the {plural(len(run.data().test), 'test image')} that are there now.",
        "Do not compare the two. To measure all on one set of test images, restore the old ones or train again.",
    )


def weak_classes(run: StoredRun) -> RunWarning | None:
    """Classes whose accuracy is below half of the mean over classes, by more than a few test images can explain."""
    by_class = run.class_accuracy
    mean = statistics.mean(by_class.values()) if by_class else 0.0
    weak = {name: value for name, value in by_class.items() if value < mean / 2}
    texts = [f"{name}: {value:.1f} %" for name, value in weak.items()]
    if (sizes := test_class_sizes(run)) is not None:
        tested = [(name, round(value * sizes[name] / 100), sizes[name]) for name, value in weak.items()]
        weak = {name: weak[name] for name, right, all_ in tested if all_ >= FEW and wilson(right, all_).high < mean}
        texts = [f"{name}: {right} of {all_}" for name, right, all_ in tested if name in weak]
    if not weak:
        return None
    return RunWarning(
        "Some classes are hardly recognised" if len(weak) > 1 else "A class is hardly recognised",
        f"{some_of(texts, LISTED)}; the mean over classes is {mean:.2f} %.",
        "The overall accuracy hides this. See below which classes they are mistaken for, check the labels of both, and "
        "label a few more images of them.",
    )


def test_class_sizes(run: StoredRun) -> dict[str, int] | None:
    """Number of test images of each class; None if they cannot be read or are not those of the run."""
    if test_images(run) is None:
        return None
    data = run.data()
    return dict(zip(data.classes, data.test.labels.bincount(minlength=len(data.classes)).tolist(), strict=True))


def sure_and_wrong(run: StoredRun) -> RunWarning | None:
    """Confident predictions that are right much less often than their confidence says, if they are computed already."""
    result = known_predictions(run)
    for row in [] if result is None else reversed(accepted(result, CONFIDENT)):
        gap, likely = row.threshold - row.share.percent / 100, row.share.interval.high < 100 * row.threshold
        if row.kept.right >= FEW and gap > TRUST_GAP and likely:
            return RunWarning(
                "Confidence cannot be trusted",
                f"Of {row.kept.right} test images that it predicts with a confidence of at least {row.threshold:g}, "
                f"{row.share.percent:.0f} % are right.",
                "Do not accept predictions because they are confident. Look at the wrong images and at the table by "
                "confidence, and label a few more images of the classes that are confused.",
            )
    return None


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
        f"but only {100 * worst['pseudo_precision']:.0f} % of it is on right ones.{judge_weight(worst)}",
        f"Learning from wrong pseudo labels confirms them, and a run may never recover. {better_start(run)}"
        + (" A higher method.threshold helps if the method has one." * (worst.get("pseudo_auc", 0) >= TOLD_APART)),
    )


def better_start(run: StoredRun) -> str:
    """What to do about wrong pseudo labels at the start; the recipe for it exists for some methods only.

    Other named recipes have a start of their own, or a pretrained backbone.
    """
    named = "cold-start"
    if run.settings.recipe == RunSettings.recipe and run.settings.method_name in NAMED[named]:
        return f"Try --recipe {named}, or label a few more images of each class."
    return "Try several seeds with --tries 3, or label a few more images of each class."


def judge_weight(line: Mapping[str, Any]) -> str:
    """Sentences on whether the weight tells right from wrong pseudo labels, and on a class with too many of them.

    Empty for a line of an older log, which does not say.
    """
    said = ""
    if "pseudo_auc" in line:
        tells = "tells" if line["pseudo_auc"] >= TOLD_APART else "hardly tells"
        said += f" The weight {tells} right from wrong ones (AUC {line['pseudo_auc']:.2f}, chance 0.50): of the tenth "
        said += f"with the largest weights, {100 * line['pseudo_precision_by_weight'][-1]:.0f} % are right."
    shares = line.get("pseudo_class_share", [0.0])
    if max(shares) * len(shares) >= COLLAPSED:
        said += f" {100 * max(shares):.0f} % of the weight is on one of {len(shares)} classes."
    return said


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


def uneven_classes(run: StoredRun) -> RunWarning | None:
    """The method takes classes to be equally frequent among the unlabelled images, and they do not seem to be."""
    imbalance = run.settings.data.unlabeled_imbalance
    shares = next((line["pseudo_class_share"] for line in reversed(run.records) if "pseudo_class_share" in line), [0.0])
    if imbalance != 1:
        finding = f"The unlabelled images are long-tailed (data.unlabeled_imbalance={imbalance:g})"
    elif max(shares) * len(shares) >= COLLAPSED:
        finding = f"{100 * max(shares):.0f} % of the pseudo labels at the end are of one of {len(shares)} classes"
    else:
        return None
    if not load_method(run.settings.method_name).needs_even_classes(run.settings.method):
        return None
    return RunWarning(
        "The method needs even classes",
        f"{finding}, but {run.settings.method_name} takes all classes to be equally frequent.",
        "It accepts too many pseudo labels of rare classes, or moves predictions towards them. Align to the shares of "
        "the labels or not at all, if the method has method.alignment, or compare with --method fixmatch.",
    )


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
    fill: list[int] = next((record["queue_fill"] for record in reversed(run.records) if "queue_fill" in record), [])
    classes = run.class_names(len(fill)) if run.finished and len(fill) > 1 else []  # a single ring is for all classes
    slots = load_method(run.settings.method_name).memory_slots(run.settings.method, len(classes))
    if not classes or not len(classes) == len(slots) == len(fill):
        return None
    rings = list(zip(classes, fill, slots, strict=True))
    short = [f"{name}: {count}" for name, count, size in rings if count < size]
    if not short:
        return None
    return RunWarning(
        "Part of the queue never filled",
        f"Each class has a ring of {slots[0]} slots, but {len(short)} of {len(fill)} ended with fewer images: "
        f"{some_of(short, LISTED)}.",
        "Few images of these classes were predicted with confidence, so pseudo labels rest on few examples. Use fewer "
        "slots or a lower threshold (method.slots, method.threshold), or train longer.",
    )


def few_steps(run: StoredRun) -> RunWarning | None:
    """The run is shorter than its recipe."""
    steps, usual = run.settings.train.steps, recipe_of(run.settings).train.steps
    if steps >= usual:
        return None
    if is_own_images(run.settings.data.name):
        return RunWarning(
            "Shorter than usual",
            f"It trains for {steps:,} steps; the default is {usual:,}.",
            "If the accuracy still rises at the end, more steps help.",
        )
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
        f"On {condition}, training on the labels alone reaches {mean_and_spread(floor)}, more than "
        f"{some_of(worse, LISTED)}.",
        "Pseudo labels can do harm, above all with wrong or very uneven labels. Compare their precision below, look at "
        "the labelled images, and repeat on other folds before you draw a conclusion.",
    )
