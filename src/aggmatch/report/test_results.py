"""How far the predictions of trained models can be trusted: by class, by confidence, and one model against another."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from weakref import WeakKeyDictionary

import torch
from scipy.stats import binomtest

from aggmatch.data import Images
from aggmatch.devices import choose_device, hardware
from aggmatch.evaluation import Evaluation, evaluate
from aggmatch.report.summary import Interval, wilson
from aggmatch.runs.stored import RunRecord, Tell, silent

THRESHOLDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
"""Least confidences with which predictions might be accepted."""
PART = 1000
"""Test images between two looks at the clock."""
PATIENCE = 10.0
"""Seconds between two words on how far it is."""


TRIED: WeakKeyDictionary[RunRecord, Evaluation] = WeakKeyDictionary()
"""What `tried` has found so far."""


def tried(run: RunRecord, tell: Tell = silent) -> Evaluation:
    """Predictions of a finished run's model on the test images; made once, and where that takes long, told of."""
    if run not in TRIED:
        model, test = run.model(), run.data().test
        tell(f"Model of {run.name} on {len(test):,} test images ...")
        parts, told = [], monotonic()
        for part in torch.arange(len(test)).split(PART):
            parts.append(evaluate(model.method, model.network, Images(test.pixels[part], test.labels[part])).probs)
            if monotonic() - told > PATIENCE:
                tell(f"  {int(part[-1]) + 1:,} of {len(test):,}")
                told = monotonic()
        TRIED[run] = Evaluation(torch.cat(parts), test.labels)
    return TRIED[run]


def discrepancy(run: RunRecord) -> str:
    """A sentence on how the model does here if that is not what its summary says; nothing where they agree."""
    here, then = f"{tried(run).accuracy:.2f} %", run.summary
    if then and run.drawn.get("test_fingerprint") not in (None, run.data().test_fingerprint):
        return (
            f"The test images here are not those of the run: {here} of these are right; the run itself ended with "
            f"{then['accuracy']:.2f} % of its own."
        )
    if not then or here == f"{then['accuracy']:.2f} %":
        return ""
    return (
        f"Tried here on {hardware(choose_device(run.settings.runtime.device))}: {here}; the run itself ended with "
        f"{then['accuracy']:.2f} % on {then['hardware']}, whose arithmetic may differ."
    )


@dataclass(frozen=True)
class Share:
    """A number of right ones among images."""

    right: int
    images: int

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.right / self.images

    @property
    def interval(self) -> Interval:
        """Its 95 % interval."""
        return wilson(self.right, self.images)


@dataclass(frozen=True)
class ClassResult:
    """How well one class is recognised."""

    name: str
    labels: int
    """Labelled training images that were given as this class."""
    share: Share | None
    """Right ones among its test images; None where it has none."""
    rival: str
    """The class that its images are most often taken for; empty where there is no mistake."""
    mistaken: int
    """How many are taken for that."""


def class_results(run: RunRecord) -> list[ClassResult]:
    """Every class of a finished run, in order."""
    classes, confusion = run.data().classes, tried(run).confusion
    given = run.split().labels.bincount(minlength=len(classes)).tolist()
    results = []
    for number, (name, counts) in enumerate(zip(classes, confusion, strict=True)):
        wrong = counts.clone()
        wrong[number] = 0
        mistaken, images = int(wrong.max()), int(counts.sum())
        share = Share(int(counts[number]), images) if images else None
        rival = classes[int(wrong.argmax())] if mistaken else ""
        results.append(ClassResult(name, given[number], share, rival, mistaken))
    return results


@dataclass(frozen=True)
class Accepted:
    """What remains of the test images where predictions below a confidence are set aside."""

    threshold: float
    kept: Share
    """Accepted ones among all test images."""
    share: Share
    """Right ones among the accepted."""


def accepted(result: Evaluation, thresholds: Sequence[float] = THRESHOLDS) -> list[Accepted]:
    """Accuracy among the predictions of at least each confidence; thresholds that nothing reaches are left out."""
    confidence, right = result.probs.amax(1), result.predicted == result.labels
    rows = []
    for threshold in thresholds:
        kept = confidence >= threshold
        if count := int(kept.sum()):
            rows.append(Accepted(threshold, Share(count, len(kept)), Share(int(right[kept].sum()), count)))
    return rows


@dataclass(frozen=True)
class Paired:
    """Two models on the same test images."""

    first: str
    second: str
    only_first: int
    """Images that only the first has right."""
    only_second: int
    chance: float
    """Probability of a difference at least as large if both were equally good: the exact sign test of McNemar."""


def paired(first: RunRecord, second: RunRecord) -> Paired:
    """Compare two finished runs on one data set, image by image."""
    ours, theirs = (each.predicted == each.labels for each in (tried(first), tried(second)))
    only_first, only_second = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    differ = only_first + only_second
    chance = float(binomtest(only_first, differ).pvalue) if differ else 1.0
    return Paired(first.name, second.name, only_first, only_second, chance)
