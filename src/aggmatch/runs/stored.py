"""A run read back: from its folder, or from a line of a results file."""

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from aggmatch.config import Layer
from aggmatch.data import DataSet, Split
from aggmatch.data.splits import read_content
from aggmatch.devices import choose_device
from aggmatch.errors import AggMatchError
from aggmatch.registry import short_name
from aggmatch.runs import checkpoint
from aggmatch.runs.folder import Estimated, RunFolder
from aggmatch.runs.stats import (
    Length,
    Median,
    at_least_as_good,
    describe_noise,
    last_loss,
    median_of_last,
    unique_names,
)
from aggmatch.settings import RunSettings
from aggmatch.validate import Natural

Value = TypeVar("Value")
EVALUATED = ("accuracy_average", "accuracy_online")
PSEUDO = ("pseudo_precision", "pseudo_recall", "pseudo_coverage")


class Given(TypedDict):
    """What a run was given if its settings ask for all labels of its data set, such as a folder of images."""

    labels: Natural
    """Number of labelled images."""
    fingerprint: str | None
    """Hash of training images and labels; None in old split files."""


class DataSets:
    """Loads data sets and caches the last one, so that runs on the same data set share it."""

    def __init__(self) -> None:
        self.last: tuple[object, DataSet] | None = None

    def load(self, settings: RunSettings, *, download: bool) -> DataSet:
        """The data set that the settings name."""
        data = settings.data
        key = (data.name, data.labels_file, data.side, data.holdout, data.test_images, settings.runtime.data_dir)
        if self.last is None or self.last[0] != key:
            self.last = key, settings.load_data(download=download)
        return self.last[1]


@dataclass(frozen=True, eq=False)
class StoredRun:
    """Everything known about one run. Its data set is read on first use.

    Example: `read_run(Path("runs/mine")).accuracy`.
    """

    settings: RunSettings
    records: Sequence[Mapping[str, Any]]
    """Lines of the log, or the evaluations that a results file holds."""
    summary: Mapping[str, Any] | None
    """The result; None while the run is not finished."""
    steps: int
    """Steps that the run has logged or finished."""
    hardware: str | None
    """What the last part of the run was trained on; None if unknown."""
    versions: Mapping[str, str] | None
    path: Path | None = None
    """Its folder; None for a line of a results file."""
    stored_given: Given | None = None
    """What `given` is for a line of a results file."""
    name: str = ""
    """A short name, unique among the runs read together, such as "aggmatch fold 0"."""
    download: bool = False
    """Whether missing files of the data set are fetched."""
    data_sets: DataSets = field(default_factory=DataSets, repr=False)
    computed: dict[object, Any] = field(default_factory=dict, repr=False)
    """Results of `once`."""

    # Result -------------------------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether it was trained to its last step."""
        return self.summary is not None

    @cached_property
    def curve(self) -> list[dict[str, Any]]:
        """Each evaluation of both networks, with the pseudo-label values of the nearest log step."""
        logged = [record for record in self.records if PSEUDO[-1] in record]
        points = []
        for record in self.records:
            if all(name in record for name in EVALUATED):
                step = record["step"]
                nearest = min(logged, key=lambda other: abs(other["step"] - step), default={})
                source = record if PSEUDO[-1] in record else nearest
                values = {name: record[name] for name in EVALUATED} | {name: source.get(name) for name in PSEUDO}
                values["seconds"] = record.get("seconds")
                rounded = {name: round(value, 4) for name, value in values.items() if value is not None}
                points.append({"step": step, **rounded})
        return points

    @cached_property
    def evaluations(self) -> list[tuple[int, float]]:
        """Step and accuracy in percent of every evaluation of the headline network."""
        name = f"accuracy_{self.settings.train.evaluated}"
        return [(record["step"], record[name]) for record in self.records if name in record]

    def minutes_to(self, accuracy: float) -> float | None:
        """Time until an evaluation of the headline network had this accuracy in percent; None if never, or unknown."""
        name = f"accuracy_{self.settings.train.evaluated}"
        first = next((record for record in self.records if record.get(name, -1) >= accuracy), {})
        return first["seconds"] / 60 if "seconds" in first else None

    @property
    def accuracy(self) -> float | None:
        """Test accuracy in percent at the last step, or at the last evaluation so far; None if there is none."""
        if self.summary is not None:
            known = self.summary["accuracy"]
            return None if known is None else float(known)  # None without test images
        return self.evaluations[-1][1] if self.evaluations else None

    @property
    def length(self) -> Length | None:
        """How far it got when it was last evaluated, or its end, and its schedule; None before the first evaluation."""
        schedule = self.settings.train.steps
        if self.finished:
            return Length(True, self.steps, schedule)
        return Length(False, self.evaluations[-1][0], schedule) if self.evaluations else None

    @property
    def median(self) -> Median | None:
        """Median of the last evaluations; None before the first."""
        return median_of_last([accuracy for _, accuracy in self.evaluations])

    @property
    def last_loss(self) -> float | None:
        """Mean training loss in the last tenth of the log; None if no loss was logged."""
        return last_loss(self.records)

    @property
    def class_accuracy(self) -> Mapping[str, float]:
        """Accuracy in percent of each class that has test images; empty for an unfinished run."""
        return self.summary.get("class_accuracy", {}) if self.summary else {}

    def class_names(self, count: int) -> list[str]:
        """Names of its `count` classes, or their numbers if nothing tells their names."""
        names = list(self.class_accuracy)
        if len(names) != count:  # not all of them have test images
            with suppress(AggMatchError):
                names = list(self.data().classes)
        return names if len(names) == count else [str(number) for number in range(count)]

    @property
    def probes(self) -> Mapping[str, float]:
        """Accuracy in percent of classic learners on frozen features and the same labels; empty if not measured."""
        return self.summary.get("probes", {}) if self.summary else {}

    @property
    def better_probe(self) -> str | None:
        """The best classic learner on frozen features, if it is at least as good as the run."""
        return at_least_as_good(self.probes, self.accuracy)

    @property
    def estimate(self) -> Estimated | None:
        """The estimated accuracy on images without a label; None if it was not estimated."""
        return RunFolder(self.path).estimated() if self.path else None

    def pseudo_labels(self, name: str) -> float | None:
        """A pseudo-label value at the last log step in percent, such as "precision"; None if there is none."""
        logged = self.summary or next((record for record in reversed(self.records) if "loss" in record), {})
        known = logged.get("pseudo_coverage", 0) > 0 and f"pseudo_{name}" in logged
        return 100 * float(logged[f"pseudo_{name}"]) if known else None

    @property
    def seconds(self) -> float | None:
        """Time spent training; None if unknown."""
        known = self.summary or (self.records[-1] if self.records else {})
        return known.get("seconds")

    @property
    def completeness(self) -> tuple[bool, int, int]:
        """Sort key of versions of one run: the larger one is more complete."""
        return self.finished, self.steps, len(self.curve)

    # What it is ---------------------------------------------------------------------------------------------------

    @cached_property
    def key(self) -> str:
        """The configuration that decides the result, as a text: equal exactly for the same run."""
        given = {"given": self.given} if self.given else {}
        return json.dumps(self.settings.identity() | given, sort_keys=True)

    @cached_property
    def given(self) -> Given | None:
        """Labels and images, if the settings ask for all labels: a folder of images may get more of them later."""
        if self.settings.data.labels is not None or self.path is None:
            return self.stored_given
        return Given(labels=len(self.drawn["labeled"]), fingerprint=self.drawn.get("fingerprint"))

    @property
    def method(self) -> str:
        """Name of the method, without folders."""
        return short_name(self.settings.method_name)

    @property
    def data_name(self) -> str:
        """Name of the data set; of a folder, the last part of its path."""
        return Path(short_name(self.settings.data.name)).name

    @property
    def labels(self) -> int | None:
        """Number of labelled images; None if the run used all labels and an old results file does not say how many."""
        if self.path:
            return len(self.drawn["labeled"])
        return self.given["labels"] if self.given else self.settings.data.labels

    @property
    def fold(self) -> int:
        """Which draw of the labelled images."""
        return int(self.drawn["fold"]) if self.path else self.settings.data.fold

    @property
    def condition(self) -> str:
        """Data set, labels and noise."""
        noise = f", {describe_noise(self.settings)}" if self.settings.data.noise_rate else ""
        return f"{self.data_name}, {'all' if self.labels is None else self.labels} labels{noise}"

    def describe(self) -> str:
        """Method, recipe, data set, labels, noise and fold, for captions."""
        return f"{self.method} ({self.settings.recipe} recipe) on {self.condition}, fold {self.fold}"

    # Its folder ---------------------------------------------------------------------------------------------------

    @property
    def folder(self) -> RunFolder:
        """Its folder; raises an `AggMatchError` if the run was read from a results file."""
        if self.path is None:
            raise AggMatchError(f"The folder of {self.describe()} is not available: the run comes from a results file.")
        return RunFolder(self.path)

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """The stored split, with labels and fold; it can be read without the data."""
        return {**read_content(self.folder.split)}

    @cached_property
    def snapshots(self) -> list[Path]:
        """Files of its snapshots, oldest first."""
        return sorted(self.folder.snapshots.glob("step-*.safetensors")) if self.path else []

    @property
    def tested(self) -> int | None:
        """Number of its test images, which the split of own images lists; None for other data and results files."""
        return len(self.drawn["test_images"]) if self.path and "test_images" in self.drawn else None

    @property
    def checkpoint_step(self) -> int | None:
        """The step of its newest checkpoint while it is not finished; None for a finished run or without one."""
        saved = checkpoint.found(self.folder.checkpoints) if self.path and not self.finished else []
        return checkpoint.step_of(saved[0]) if saved else None

    @property
    def has_model(self) -> bool:
        """Whether it can predict: it is finished, or has a checkpoint."""
        return self.finished or self.checkpoint_step is not None

    @property
    def model_words(self) -> str:
        """Which state of the network predicts: `last step`, or `checkpoint of step 400`."""
        return "last step" if self.finished else f"checkpoint of step {self.checkpoint_step:,}"

    def data(self) -> DataSet:
        """The data set that it was trained on."""
        return self.data_sets.load(self.settings, download=self.download)

    def split(self) -> Split:
        """Which training images had which label."""
        return Split.read(self.folder.split, self.data())

    def once(self, key: object, compute: Callable[[], Value]) -> Value:
        """Return the result of a slow computation on this run, cached under `key`."""
        if key not in self.computed:
            self.computed[key] = compute()
        return self.computed[key]


def snapshot_step(path: Path) -> int:
    """The step after which a snapshot was taken, by its file name."""
    return int(path.stem.removeprefix("step-"))


def read_run(
    path: Path, changes: Sequence[Layer] = (), *, allow: Iterable[str] = (), download: bool = False
) -> StoredRun:
    """Read a run folder, finished or not.

    changes: settings of section `runtime` for this machine. allow: code that the folder may name, see
    `RunFolder.settings`. download: whether missing files of its data set may be fetched.
    """
    folder = RunFolder(path)
    if not folder.holds_run:
        raise AggMatchError(f"{path} is not the folder of a run: it has no {folder.config.name}.")
    settings = folder.settings_here(changes, allow=allow)
    if changes:
        choose_device(settings.runtime.device)  # fail now rather than after the first figures
    summary, records = folder.result(), folder.records()  # in this order: a run that ends now logs no more
    place = summary or folder.last_session() or {}
    return StoredRun(
        settings=settings,
        records=records,
        summary=summary,
        steps=summary["steps"] if summary else max((record["step"] for record in records), default=0),
        hardware=place.get("hardware"),
        versions=place.get("versions"),
        path=path,
        name=os.fsencode(path.resolve().name).decode(errors="replace"),  # the report is UTF-8
        download=download,
    )


def read_runs(
    paths: Sequence[Path], changes: Sequence[Layer] = (), *, allow: Iterable[str] = (), download: bool = False
) -> list[StoredRun]:
    """Read run folders, each once, in the given order, with names that tell them apart; see `read_run`."""
    distinct: dict[Path, Path] = {}
    for path in paths:
        distinct.setdefault(path.resolve(), path)
    allowed = list(allow)
    runs = [read_run(path, changes, allow=allowed, download=download) for path in distinct.values()]
    shared = DataSets()
    return [replace(run, name=name, data_sets=shared) for run, name in zip(runs, unique_names(runs), strict=True)]


def find_runs(places: Iterable[Path]) -> list[Path]:
    """Return the run folders at these places: each place is a run folder or has some below it."""
    found: list[Path] = []
    for place in places:
        below = [place] if RunFolder(place).holds_run else sorted(path.parent for path in place.glob("**/config.json"))
        if not below:
            raise AggMatchError(f"{place} holds no run: there is no config.json in it or below it.")
        found += below
    return list(dict.fromkeys(found))


def most_complete(runs: Iterable[StoredRun]) -> list[StoredRun]:
    """Each run once; of several versions of one run the most complete, or the last of equals."""
    found: dict[str, StoredRun] = {}
    for run in runs:
        if run.completeness >= found.setdefault(run.key, run).completeness:
            found[run.key] = run
    return list(found.values())
