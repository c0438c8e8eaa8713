"""Statistics of runs: last evaluations, intervals, means, and which runs belong together.

A group is a set of runs that differ only in fold and seed. A condition is a data set with a number of labels and
their noise: runs under one condition can be compared.
"""

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from aggmatch.config import differences, flatten
from aggmatch.recipes import SHARES
from aggmatch.settings import CADENCE, RunSettings, resolve
from aggmatch.tables import plural, show_mean

if TYPE_CHECKING:
    from aggmatch.runs.stored import StoredRun

Key = TypeVar("Key")
Value = TypeVar("Value")
LAST_EVALUATIONS = 20
"""Number of last evaluations whose median is reported next to the accuracy."""
NORMAL_QUANTILE = 1.959964
"""Half the width, in standard deviations, of the middle 95 % of a normal distribution."""
LENGTH = ("steps", *CADENCE)
"""Settings of section `train` that say how long and how often, not what a run learns."""
ALWAYS_NAMED = ("data.name", "data.labels", "recipe")
"""Settings that name every run as soon as two runs differ in them."""
CLEAN = "clean labels"
FEW_TEST_IMAGES = 30
"""Number of test images below which an accuracy means little."""


class Length(NamedTuple):
    """How far a run went; sorts by completeness."""

    finished: bool
    steps: int
    """Steps after which the accuracy was measured."""
    schedule: int
    """Steps that the run was planned to have."""

    @property
    def text(self) -> str:
        """The steps, with the planned number if some are left: `52,000 of 60,000`."""
        return f"{self.steps:,}" if self.finished else f"{self.steps:,} of {self.schedule:,}"


class Median(NamedTuple):
    """The median of a run's last evaluations, and how many these were."""

    value: float
    evaluations: int


def median_of_last(accuracies: Sequence[float]) -> Median | None:
    """The median of the last evaluations, or of all if there are fewer; None without any."""
    last = accuracies[-LAST_EVALUATIONS:]
    return Median(statistics.median(last), len(last)) if last else None


def last_loss(records: Iterable[Mapping[str, Any]]) -> float | None:
    """Mean training loss in the last tenth of a log; None if no loss was logged."""
    losses = [record["loss"] for record in records if "loss" in record]
    return statistics.fmean(losses[-max(len(losses) // 10, 1) :]) if losses else None


def describe_counts(medians: Iterable[Median]) -> str:
    """How many evaluations went into medians: `20 evaluations`, or `5 to 20 evaluations` if runs differ."""
    counts = [median.evaluations for median in medians]
    least, most = min(counts), max(counts)
    return plural(most, "evaluation") if least == most else f"{least} to {most} evaluations"


class Interval(NamedTuple):
    """Two bounds in percent."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.1f} to {self.high:.1f} %"


def wilson(right: int, images: int) -> Interval:
    """Wilson's 95 % interval, in percent, of a share measured as `right` out of `images`.

    (p + z²/2n ± z √(p(1−p)/n + z²/4n²)) / (1 + z²/n). Unlike p ± z·s it stays between 0 and 100 % and holds for few
    images.

    Example: `wilson(9, 10)` is about 59.6 to 98.2 %.
    """
    share, z = right / images, NORMAL_QUANTILE
    spread = z * math.sqrt(share * (1 - share) / images + z**2 / (4 * images**2))
    middle, scale = share + z**2 / (2 * images), 1 + z**2 / images
    return Interval(100 * max(middle - spread, 0) / scale, 100 * min((middle + spread) / scale, 1))


def small_test(images: int) -> str:
    """A sentence that warns about few test images, with the interval of an example; empty if they are enough.

    Example: `small_test(3)` says that 2 of 3 right, 66.7 %, can mean anything from 20.8 to 93.9 %.
    """
    if not 0 < images < FEW_TEST_IMAGES:
        return ""
    right = max(1, round(0.8 * images))
    return (
        f"{plural(images, 'test image')} cannot tell how good a model is: {right} of {images} right, "
        f"{100 * right / images:.1f} %, can mean anything from {wilson(right, images)}. A few hundred are better."
    )


def at_least_as_good(probes: Mapping[str, float], accuracy: float | None) -> str | None:
    """Return the best classic learner if its accuracy is not below that of a run or method; else None.

    Example: `at_least_as_good({"LabelSpreading": 60.0}, 60.0)` is "LabelSpreading".
    """
    best = max(probes, key=probes.__getitem__, default=None)
    return best if best is not None and accuracy is not None and probes[best] >= accuracy else None


def mean_and_spread(values: Sequence[float]) -> str:
    """Mean ± sample standard deviation in percent, with the number of runs if there are several."""
    return f"{show_mean(values)} %" + (f" ({len(values)} runs)" if len(values) > 1 else "")


# Settings ---------------------------------------------------------------------------------------------------------


def tested_classes(runs: "Sequence[StoredRun]") -> list[str]:
    """Names of the classes whose accuracy every run knows."""
    return [name for name in runs[0].class_accuracy if all(name in run.class_accuracy for run in runs)]


def recipe_of(settings: RunSettings, *, steps: int | None = None) -> RunSettings:
    """The settings of the same method on the same data set with nothing else changed, but perhaps the steps."""
    named = {"data.name": settings.data.name, "method.name": settings.method_name, "recipe": settings.recipe}
    named |= {"train.backbone": settings.train.backbone}
    return resolve(named if steps is None else {**named, "train.steps": steps})


def usual_settings(settings: RunSettings) -> dict[str, Any]:
    """Dotted settings of the recipe of a run.

    What follows from the number of steps is that of the run's own number: how often it logs and evaluates, and how long
    the first steps of a named recipe are.
    """
    fitted = flatten(recipe_of(settings, steps=settings.train.steps).to_dict())
    usual = flatten(recipe_of(settings).to_dict())
    return usual | {key: fitted[key] for key in (*SHARES, *(f"train.{name}" for name in CADENCE)) if key in fitted}


def without_cadence(settings: RunSettings) -> dict[str, Any]:
    """What decides the result of a run, except its length."""
    identity = settings.identity()
    identity["train"] = {name: value for name, value in identity["train"].items() if name not in LENGTH}
    return identity


def likeness(settings: RunSettings, *, any_fold: bool = False) -> str:
    """Return a text that is equal for runs that differ only in length or, with `any_fold`, also in their fold."""
    identity = without_cadence(settings)
    if any_fold:
        identity["data"] = {**identity["data"], "fold": None}
    return json.dumps(identity, sort_keys=True)


def departures(planned: RunSettings, settings: RunSettings) -> dict[str, tuple[Any, Any]]:
    """Dotted keys in which a run departs from what was planned → (planned, done).

    Fold and length are left out with what follows from the length, and so is the file that lists kept test images,
    which is in the run's own folder.
    """
    changes = differences(without_cadence(planned), without_cadence(settings))
    left_out = {"data.fold", "data.test_images", *shortened(planned, settings)}
    return {key: pair for key, pair in changes.items() if key not in left_out}


def shortened(planned: RunSettings, settings: RunSettings) -> list[str]:
    """First steps of a named recipe, of which both have as many as the recipe takes of their own number of steps."""
    if planned.recipe != settings.recipe or planned.train.steps == settings.train.steps:
        return []
    pairs = [(flatten(each.to_dict()), usual_settings(each)) for each in (planned, settings)]
    return [key for key in SHARES if all(key in own and own[key] == usual[key] for own, usual in pairs)]


def describe_departures(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """`optim.lr is 0.5, not 0.03; ...`."""
    return "; ".join(f"{key} is {done!r}, not {planned!r}" for key, (planned, done) in changes.items())


# Groups -----------------------------------------------------------------------------------------------------------


def group_by(runs: Iterable[Value], key: Callable[[Value], Key]) -> dict[Key, list[Value]]:
    """Runs by their keys, both in the order in which they come."""
    groups: dict[Key, list[Value]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return groups


def conditions(runs: "Sequence[StoredRun]") -> "dict[str, list[StoredRun]]":
    """Runs by condition: data set, number of labels and their noise."""
    return group_by(runs, lambda run: run.condition)


def grouped(runs: "Sequence[StoredRun]") -> "dict[str, list[StoredRun]]":
    """Runs that differ only in fold and seed, by a common name."""
    return group_by(runs, dict(zip(runs, group_names(runs), strict=True)).__getitem__)


def first_of_groups(runs: "Sequence[StoredRun]") -> "list[StoredRun]":
    """The first run of every group, for figures that look into a single run."""
    return [group[0] for group in grouped(runs).values()]


def unique_names(runs: "Sequence[StoredRun]") -> list[str]:
    """A name for each run that no other has: its group, its fold and, if that is not enough, its folder."""
    names = [
        f"{group}{',' if ',' in group else ''} fold {run.fold}"
        for group, run in zip(group_names(runs), runs, strict=True)
    ]
    for suffix in (lambda run: run.folder.path.resolve().name, lambda run: str(run.folder.path)):
        repeated = {name for name, count in Counter(names).items() if count > 1}
        names = [f"{name} ({suffix(run)})" if name in repeated else name for name, run in zip(names, runs, strict=True)]
    return names


def group_names(runs: "Sequence[StoredRun]") -> list[str]:
    """The name of each run's group: its method, and how it differs from the other runs.

    Data set and number of labels are named if any two runs differ in them. Other settings are named if two runs of one
    method differ in them and the run departs from the recipe. Settings that a method always has are not named: its name
    implies them.
    """
    described = [compared_settings(run) for run in runs]
    names = []
    for run, own in zip(runs, described, strict=True):
        peers = [other for peer, other in zip(runs, described, strict=True) if peer.method == run.method]
        usual = usual_settings(run.settings) | {"data.noise": CLEAN}
        words = [
            describe_setting(key, value)
            for key, value in own.items()
            if any(other.get(key, value) != value for other in (described if key in ALWAYS_NAMED else peers))
            and (key in ALWAYS_NAMED or value != usual.get(key))
        ]
        names.append(", ".join([run.method, *words]))
    return names


def compared_settings(run: "StoredRun") -> dict[str, Any]:
    """Dotted settings that decide a run's result, except its method and those that only distinguish repetitions."""
    left_out = ["method.name", "data.fold", "data.split", "data.noise_rate", "data.test_images", "train.seed"]
    left_out += [f"train.{name}" for name in CADENCE]
    settings = {key: value for key, value in flatten(run.settings.identity()).items() if key not in left_out}
    if not settings["data.noise_map"]:
        del settings["data.noise_map"]  # named only among runs that have one
    return settings | {"data.labels": run.labels, "data.noise": describe_noise(run.settings)}


def describe_noise(settings: RunSettings) -> str:
    """Rate and kind of wrong labels according to the settings: `25 % asymmetric noise`."""
    data = settings.data
    if data.split is not None:
        return "labels as given"
    return f"{100 * data.noise_rate:g} % {data.noise} noise" if data.noise_rate else CLEAN


def describe_setting(key: str, value: Any) -> str:
    """The text of a setting in a legend: `slots 512`."""
    match key:
        case "data.name":
            return Path(value).name
        case "data.noise":
            return str(value)
        case "data.labels":
            return f"{value} labels"
        case "recipe":
            return f"{value} recipe"
        case "train.start_from" | "data.labels_file":
            return f"{'from' if key == 'train.start_from' else 'labels of'} {Path(value).name}"
        case _:
            shown = str(value).lower() if isinstance(value, bool) else value
            return f"{key.split('.', 1)[1]} {shown}"


def best_pairs(runs: "Sequence[StoredRun]") -> "Iterator[tuple[StoredRun, StoredRun]]":
    """Under each condition, the finished run of the highest accuracy paired with the best of every other group.

    Both learned from the same labels. If the labels were drawn several times, the draw with most groups is taken.
    """
    tested = [run for run in runs if run.finished and run.accuracy is not None]
    for members in conditions(tested).values():
        draws = group_by(members, lambda run: json.dumps(run.drawn, sort_keys=True))
        first, *others = max(map(best_of_groups, draws.values()), key=lambda best: (len(best), best[0].accuracy))
        yield from ((first, other) for other in others)


def best_of_groups(runs: "Sequence[StoredRun]") -> "list[StoredRun]":
    """The run of the highest accuracy in each group, highest first. runs: finished, and with test images."""
    accuracy = attrgetter("accuracy")
    return sorted((max(group, key=accuracy) for group in grouped(runs).values()), key=accuracy, reverse=True)
