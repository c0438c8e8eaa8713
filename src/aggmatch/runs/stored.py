"""Run folders as analyses read them: settings, metrics, result, data and snapshots, and a short name for each run."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, TypedDict

from aggmatch.config import Layer, Natural, flatten
from aggmatch.data import DataSet, Split, load
from aggmatch.devices import choose_device
from aggmatch.errors import AggMatchError
from aggmatch.inference.model import Snapshot, TrainedModel
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings, resolve
from aggmatch.validate import require

ALWAYS = ("data.name", "data.labels")
"""Settings that are told of every run where runs differ in them."""
CLEAN = "clean labels"

Tell = Callable[[str], None]
"""Is told what is being done and how far it is."""


def silent(_: str) -> None:
    """Tell nobody."""


class Drawn(TypedDict):
    """What can be told of a split without the data."""

    labeled: list[Natural]
    fold: Natural


@dataclass(frozen=True, eq=False)
class RunRecord:
    """Everything of a run folder that analyses read. Data and networks are read when they are asked for."""

    path: Path
    settings: RunSettings
    records: list[dict[str, Any]]
    """The lines of `metrics.jsonl`; none where the run has not logged yet."""
    summary: dict[str, Any] | None
    """The run's result; None while it is not finished."""
    name: str
    """Short label that no other run read with it has, such as "aggmatch fold 0"."""
    download: bool = False
    """Whether files of the data set that are missing here are fetched."""

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.settings.method_name

    @property
    def data_name(self) -> str:
        """Name of the data set; of a folder, the last part of its path."""
        return Path(self.settings.data.name).name

    @cached_property
    def snapshots(self) -> list[Path]:
        """Files of the kept snapshots, oldest first."""
        return sorted(RunFolder(self.path).snapshots.glob("step-*.safetensors"))

    def data(self) -> DataSet:
        """The data set that it was trained on."""
        data = self.settings.data
        return load_once(data.name, self.settings.runtime.data_dir, self.download, data.side, data.holdout)

    def split(self) -> Split:
        """Which training images carried which label."""
        return Split.read(RunFolder(self.path).split, self.data())

    def snapshot(self, path: Path) -> Snapshot:
        """Networks and method as they were when a snapshot was taken, on the device of the settings."""
        return Snapshot.load(path, self.settings)

    def model(self) -> TrainedModel:
        """The saved network of a finished run."""
        return TrainedModel.load(self.path, [Layer("the analysis", {"runtime": self.settings.runtime.to_dict()})])

    @cached_property
    def drawn(self) -> dict[str, Any]:
        """The split as it is written, which tells labels and fold without the data, also where it was a given one."""
        folder = RunFolder(self.path)
        return require(folder.read_json(folder.split), Drawn, folder.split)

    @property
    def labels(self) -> int:
        """Number of labelled images."""
        return len(self.drawn["labeled"])

    @property
    def fold(self) -> int:
        """Which draw of the labelled images."""
        return int(self.drawn["fold"])

    @property
    def condition(self) -> str:
        """Data set, labels and noise."""
        noise = f", {noise_of(self)}" if self.settings.data.noise_rate else ""
        return f"{self.data_name}, {self.labels} labels{noise}"

    def describe(self) -> str:
        """Method, data set, labels, noise and fold, for captions."""
        return f"{self.method} on {self.condition}, fold {self.fold}"


def snapshot_step(path: Path) -> int:
    """The step after which a snapshot was taken, by its name."""
    return int(path.stem.removeprefix("step-"))


def no_snapshots(run: RunRecord) -> str:
    """Why a run has no snapshot, in words that follow its name."""
    if not run.settings.runtime.snapshots:
        return "kept no snapshots (runtime.snapshots is empty)"
    return "lost its snapshots (its folder holds none)" if run.summary else "has no snapshots yet"


@lru_cache(maxsize=2)
def load_once(name: str, data_dir: str, download: bool, side: int, holdout: float) -> DataSet:
    """A data set; runs on the same one share it."""
    return load(name, Path(data_dir), download, side=side, holdout=holdout)


def read_runs(paths: Sequence[Path], changes: Sequence[Layer] = (), *, download: bool = False) -> list[RunRecord]:
    """Read run folders, each once, in the given order; `changes` may touch where analyses run (section `runtime`)."""
    distinct: dict[Path, Path] = {}
    for path in paths:
        distinct.setdefault(path.resolve(), path)
    runs = [read_run(path, changes) for path in distinct.values()]
    return [replace(run, name=name, download=download) for run, name in zip(runs, names(runs), strict=True)]


def read_run(path: Path, changes: Sequence[Layer] = ()) -> RunRecord:
    """Read one run folder; its name is that of the folder."""
    folder = RunFolder(path)
    if not folder.holds_run:
        raise AggMatchError(f"{path} is not the folder of a run: it has no {folder.config.name}.")
    settings = folder.settings_here(changes)
    if changes:
        choose_device(settings.runtime.device)  # refused here rather than after the first figures
    return RunRecord(
        path=path,
        settings=settings,
        records=folder.records(),
        summary=folder.result(),
        name=path.resolve().name,
    )


# Names ------------------------------------------------------------------------------------------------------------


def names(runs: Sequence[RunRecord]) -> list[str]:
    """Method, what tells the run from the others, and fold; the folder too where that does not make it unique."""
    labels = [
        f"{group}{',' if ',' in group else ''} fold {run.fold}"
        for group, run in zip(group_names(runs), runs, strict=True)
    ]
    for suffix in (lambda run: run.path.resolve().name, lambda run: str(run.path)):
        twice = {label for label, count in Counter(labels).items() if count > 1}
        labels = [
            f"{label} ({suffix(run)})" if label in twice else label for label, run in zip(labels, runs, strict=True)
        ]
    return labels


def grouped(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs that differ in nothing but fold and seed, under a common name."""
    groups: dict[str, list[RunRecord]] = {}
    for name, run in zip(group_names(runs), runs, strict=True):
        groups.setdefault(name, []).append(run)
    return groups


def first_folds(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """One run of every group: the first, for figures that look into a single run."""
    return [group[0] for group in grouped(runs).values()]


def conditions(runs: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Runs on the same data set with as many and as noisy labels, which may be compared."""
    parts: dict[str, list[RunRecord]] = {}
    for run in runs:
        parts.setdefault(run.condition, []).append(run)
    return parts


def group_names(runs: Sequence[RunRecord]) -> list[str]:
    """Name of each run without fold and seed: its method, and how it differs from other runs.

    Data set and number of labels are told where any two runs differ in them. Other settings are told where two runs of
    one method differ in them, by those that depart from the recipe: methods have settings and preferences of their own,
    which their names stand for.
    """
    described = [telling(run) for run in runs]
    labels = []
    for run, own in zip(runs, described, strict=True):
        peers = [other for peer, other in zip(runs, described, strict=True) if peer.method == run.method]
        usual = flatten(recipe_of(run).identity()) | {"data.noise": CLEAN}
        told = [
            word(key, value)
            for key, value in own.items()
            if any(other.get(key, value) != value for other in (described if key in ALWAYS else peers))
            and (key in ALWAYS or value != usual.get(key))
        ]
        labels.append(", ".join([run.method, *told]))
    return labels


def telling(run: RunRecord) -> dict[str, Any]:
    """Dotted settings that decide a run's result, without those that tell repetitions apart."""
    said = ("method.name", "data.fold", "data.split", "data.noise_rate", "train.seed")
    settings = {key: value for key, value in flatten(run.settings.identity()).items() if key not in said}
    if not settings["data.noise_map"]:
        del settings["data.noise_map"]  # so that it is told only among runs that have one
    return settings | {"data.labels": run.labels, "data.noise": noise_of(run)}


def recipe_of(run: RunRecord) -> RunSettings:
    """Settings of the same method on the same data set where nothing else is said."""
    return resolve([Layer("the analysis", {"data.name": run.settings.data.name, "method.name": run.method})])


def noise_of(run: RunRecord) -> str:
    """Rate and kind of wrong labels in words, as far as the settings tell."""
    data = run.settings.data
    if data.split is not None:
        return "labels as given"
    return f"{100 * data.noise_rate:g} % {data.noise} noise" if data.noise_rate else CLEAN


def word(key: str, value: Any) -> str:
    """A setting in a legend."""
    match key:
        case "data.name":
            return Path(value).name
        case "data.noise":
            return str(value)
        case "data.labels":
            return f"{value} labels"
        case _:
            shown = str(value).lower() if isinstance(value, bool) else value
            return f"{key.split('.', 1)[1]} {shown}"
