"""The result of runs in numbers and in one or two sentences: who is best, by how much, and how far to trust it."""

import json
import shlex
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from aggmatch.config import flatten, parse_value
from aggmatch.data import is_own_images
from aggmatch.errors import AggMatchError
from aggmatch.methods import load_method
from aggmatch.runs.stats import Interval, conditions, grouped, mean_and_spread, usual_settings, wilson
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import resolve
from aggmatch.tables import plural

NETWORKS = {"average": "averaged network", "online": "trained network"}
"""Value of `train.evaluated` → what the network is called."""
Other = tuple[str, float]
"""A result that is not a run: its name, and its accuracy in percent on the same labels and test images."""


# One run ----------------------------------------------------------------------------------------------------------


def test_images(run: StoredRun) -> int | None:
    """Number of test images of a run; None if its data set cannot be read or has other test images by now."""
    try:
        return None if test_images_changed(run) else len(run.data().test)
    except AggMatchError:
        return None


def test_images_changed(run: StoredRun) -> bool:
    """Whether the test images are not those that the run was tested on; False if its data set cannot be read."""
    try:
        return run.drawn.get("test_fingerprint") not in (None, run.data().test_fingerprint)
    except AggMatchError:
        return False


def correct(accuracy: float | None, images: int | None) -> int | None:
    """Number of test images that are classified correctly; None if the accuracy or the number is unknown."""
    return None if accuracy is None or not images else round(accuracy * images / 100)


def interval_of(accuracy: float | None, images: int | None) -> Interval | None:
    """95 % interval of an accuracy in percent. images: test images it was measured on. None if one is unknown.

    It covers the choice of test images only, not that of labels or seed.
    """
    right = correct(accuracy, images)
    return None if right is None or not images else wilson(right, images)


def verdict(run: StoredRun) -> str:
    """What a run achieved and how far to trust it."""
    task = f"{run.data_name} from {plural(run.labels or 0, 'label')}"
    own = is_own_images(run.settings.data.name)
    method = f"{run.method} with the {run.settings.recipe} recipe"
    state = f"{method} learned {task}"
    if not run.finished:
        state = f"{method} is learning {task}, at step {run.steps:,} of {run.settings.train.steps:,}"
    if run.accuracy is None or run.length is None:
        why = "was not measured, because it has no test images" if run.finished else "has not been measured yet"
        return f"{state}; its accuracy {why}.{estimate_of(run)}"
    images = test_images(run)
    interval = interval_of(run.accuracy, images)
    sure = f" (95 % interval {interval})" if interval else ""
    who = "it" if own else f"after step {run.length.steps:,} its {NETWORKS[run.settings.train.evaluated]}"
    since = ", which have changed since" if test_images_changed(run) else ""
    sentence = f"{state}: {who} is right on {run.accuracy:.2f} % {of_images(images)}{sure}{since}.{estimate_of(run)}"
    precision = run.pseudo_labels("precision")
    if precision is None:
        return sentence
    share = f"{precision:.1f} % of the pseudo labels"
    if run.finished:
        return f"{sentence} At the end, {share} it learned from were right."
    return f"{sentence} At present, {share} it learns from are right."


def estimate_of(run: StoredRun) -> str:
    """A sentence on the estimated accuracy, after a space; empty if there is none."""
    if (found := run.estimate) is None:
        return ""
    bounds = f"95 % interval {found['low']:.0f} to {found['high']:.0f} %"
    return f" It is estimated to be right on {found['accuracy']:.0f} % of the images without a label ({bounds})."


def of_images(count: int | None) -> str:
    """`of 360 test images`."""
    return f"of {count:,} test images" if count else "of the test images"


# Several runs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """The accuracy of a group of runs, or of a result that is not a run."""

    name: str
    accuracies: list[float]
    """Test accuracy in percent of each run that has been evaluated."""
    images: int | None
    """Number of test images."""
    run: StoredRun | None
    """The first run of the group; None for a result that is not a run."""
    finished: bool = True

    @property
    def mean(self) -> float:
        """Mean accuracy in percent."""
        return statistics.mean(self.accuracies)

    @property
    def spread(self) -> float:
        """Sample standard deviation over the runs, in points; 0 for a single run."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else 0.0

    @property
    def baseline(self) -> bool:
        """Whether its method learns from the labels alone."""
        return self.run is not None and load_method(self.run.settings.method_name).baseline

    @property
    def range(self) -> Interval | None:
        """Mean ± deviation of several runs, the 95 % interval of a single one; None without the data set."""
        if len(self.accuracies) > 1:
            return Interval(max(self.mean - self.spread, 0.0), min(self.mean + self.spread, 100.0))
        return interval_of(self.mean, self.images)

    @property
    def text(self) -> str:
        """What the range means; or that the result is not a run."""
        if len(self.accuracies) > 1:
            words = f"± {self.spread:.2f} over {len(self.accuracies)} runs"
        else:
            words = f"95 % interval {self.range}" if self.range else "one run" if self.run else ""
        notes = [words, "" if self.run else "not a run of aggmatch", "" if self.finished else "still training"]
        return "; ".join(note for note in notes if note)


@dataclass(frozen=True)
class Chart:
    """Bars of one condition, the best first."""

    condition: str
    bars: list[Bar]


def charts(runs: Sequence[StoredRun], others: Sequence[Other] = ()) -> list[Chart]:
    """A chart for each condition; `others` belong to the first one."""
    found: list[Chart] = []
    for condition, members in conditions(runs).items():
        images = test_images(members[0])
        bars = [
            Bar(name, values, images, group[0], all(run.finished for run in group))
            for name, group in grouped(members).items()
            if (values := accuracies(group))
        ]
        if not found:
            bars += [Bar(name, [accuracy], images, None) for name, accuracy in others]
        found.append(Chart(condition, sorted(bars, key=lambda bar: -bar.mean)))
    return found


def accuracies(group: Sequence[StoredRun]) -> list[float]:
    """Accuracies in percent of the runs that have been evaluated."""
    return [run.accuracy for run in group if run.accuracy is not None]


def verdict_of_several(found: Sequence[Chart]) -> str:
    """Sentences: who is best and by how much under each condition, with which recipe, and how far to trust it."""
    sentences = [ranking(chart, f"On {chart.condition}, " if len(found) > 1 else "") for chart in found]
    compared = [chart.bars for chart in found if len(chart.bars) > 1]
    return " ".join([*sentences, *shared_recipes(found), *trust(compared)])


def shared_recipes(found: Sequence[Chart]) -> Iterator[str]:
    """Sentences on the recipe that all measured runs share, or those of a condition; others have it in their names."""
    recipes = {chart.condition: {bar.run.settings.recipe for bar in chart.bars if bar.run} for chart in found}
    if len(every := set().union(*recipes.values())) == 1:
        yield f"All these runs have the {every.pop()} recipe."
        return
    for condition, own in recipes.items():
        if len(own) == 1:
            yield f"Those on {condition} have the {own.pop()} recipe."


def ranking(chart: Chart, start: str) -> str:
    """A sentence: the best, and its lead over the second and over the baseline."""
    if not chart.bars:
        return f"{start}nothing has been measured yet." if start else "Nothing has been measured yet."
    best, *rest = chart.bars
    so_far = "" if all(bar.finished for bar in chart.bars) else " so far"
    words = f"{start}{best.name} is right on {mean_and_spread(best.accuracies)} {of_images(best.images)}{so_far}"
    baseline = next((bar for bar in rest if bar.baseline), None)
    leads = [
        f"{lead(best, bar)} {bar.name} ({bar.mean:.2f} %{', from the labels alone' if bar is baseline else ''})"
        for bar in rest
        if bar in (rest[0], baseline)
    ]
    return ", ".join([words, " and ".join(leads)] if leads else [words]) + "."


def lead(best: Bar, other: Bar) -> str:
    """How far one is ahead of another: `5.28 points more than`."""
    points = f"{best.mean - other.mean:.2f}"
    return "as many as" if points == "0.00" else f"{points} points more than"


def trust(compared: Sequence[Sequence[Bar]]) -> Iterator[str]:
    """A sentence on whether the order of bars, best first, would hold with other test images, labels or seeds."""
    if not compared:
        return
    singles = [len(bar.accuracies) == 1 for bars in compared for bar in bars if bar.run]
    leads = [(bars[0].mean - bars[1].mean, bars[0].spread + bars[1].spread) for bars in compared]
    if not all(bar.finished for bars in compared for bar in bars):
        yield "Some runs are still training, so the order may change."
    elif any(singles):
        what = "Each is a single run" if all(singles) else "Some are single runs"
        close = any(a.range and b.range and a.range.low <= b.range.high for a, b, *_ in compared)
        yield (
            f"{what}{' and the intervals of the first two overlap' if close else ''}: other labels or another seed may "
            f"change the order."
        )
    elif all(ahead > spread for ahead, spread in leads):
        yield "The lead is larger than the spread over folds and seeds, so it is likely to hold."
    else:
        yield "The lead is within the spread over folds and seeds, so it may be chance."


# Configuration -------------------------------------------------------------------------------------------------------

OPTIONS = {"train.steps": "--steps", "data.split": "--split"}
"""Settings that have an option of `aggmatch train` and are named only if they differ from the recipe."""
NAMED = {"data.labels": "--labels", "data.fold": "--fold"}
"""Settings that the command always names, unless a given split decides them."""


class Row(NamedTuple):
    """A setting, its value in each run, and whether a run departs from its recipe there."""

    key: str
    values: list[str]
    departs: bool
    usual: str = ""
    """The recipe's value."""


def changed_settings(run: StoredRun) -> dict[str, Any]:
    """Dotted settings that decide the result and differ from the recipe, with the run's values.

    What follows from the number of steps is no difference; see `usual_settings`.
    """
    usual = usual_settings(run.settings)
    return {key: own for key, own in flatten(run.settings.identity()).items() if own != usual[key]}


def setting_rows(run: StoredRun) -> list[Row]:
    """Every setting of a run with the recipe's value."""
    usual, changed = usual_settings(run.settings), changed_settings(run)
    return [
        Row(key, [show(value)], key in changed, show(usual[key]))
        for key, value in flatten(run.settings.to_dict()).items()
        if key != "method.name"
    ]


def difference_rows(runs: Sequence[StoredRun]) -> list[Row]:
    """Settings in which runs differ; a dash if a method has no such setting."""
    flat = [flatten(run.settings.identity()) for run in runs]
    keys = dict.fromkeys(key for settings in flat for key in settings)
    changed = {key for run in runs for key in changed_settings(run)}
    rows = [Row(key, [show(each[key]) if key in each else "–" for each in flat], key in changed) for key in keys]
    return [row for row in rows if len(set(row.values)) > 1]


def command(run: StoredRun) -> str:
    """The command that repeats a run: it names what differs from the recipe."""
    data, changed = run.settings.data, changed_settings(run)
    words = ["aggmatch", "train", data.name, "--method", run.settings.method_name]
    usual = resolve({"data.name": data.name, "method.name": run.settings.method_name})
    words += ["--recipe", run.settings.recipe] if run.settings.recipe != usual.recipe else []
    for key, option in NAMED.items():
        value = getattr(data, key.removeprefix("data."))
        if value is not None or data.split is not None:  # no option means all labels
            changed.pop(key, None)
            words += [option, str(value)] if data.split is None else []
    for key, value in changed.items():
        if key in OPTIONS:
            words += [OPTIONS[key], str(value)]
        else:
            words += ["--set", f"{key}={assignable(value)}"]
    return shlex.join(words)


def assignable(value: Any) -> str:
    """A value as `--set` reads it back."""
    if value is None:
        return "none"
    if isinstance(value, str) and parse_value(value) == value:
        return value
    return json.dumps(value, ensure_ascii=False)


def show(value: Any) -> str:
    """A value as a person reads it."""
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(show, value)) if isinstance(value, list) else str(value)
