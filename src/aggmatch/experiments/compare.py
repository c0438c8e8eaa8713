"""Compares several methods on the same folds: mean and deviation of their accuracies."""

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from aggmatch.config import Layer
from aggmatch.data import DataSet, Split, make_split
from aggmatch.data.images import check_images
from aggmatch.data.streams import check_balance
from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import PlannedRun
from aggmatch.methods import load_method
from aggmatch.registry import short_name
from aggmatch.runs.stats import FEW_TEST_IMAGES, at_least_as_good, group_by
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import RunSettings, resolve_quick
from aggmatch.storage.files import write_texts
from aggmatch.tables import Table, mean_and_deviation

MEAN = "accuracy %"
"""Column of mean accuracies."""
SAME = " (frozen features)"
"""End of the names of classic learners in the table."""
FIXED = {
    "method.name": ("which trains several", "Name them with --methods."),
    "data.fold": ("which trains several", "--folds N takes 0 to N - 1."),
    "data.split": ("whose folds would then have the same labels", "Train on it with: aggmatch train --split FILE"),
}
"""Settings that the comparison itself sets → why, and what to do instead."""


def plan(methods: Sequence[str], folds: int, layers: Sequence[Layer]) -> list[RunSettings]:
    """Settings of every run, method by method, validated as far as possible without the data.

    layers: changes for all runs. They cannot set what distinguishes the runs.
    """
    for layer in layers:
        for key, (reason, instead) in FIXED.items():
            if key in layer.values:
                raise AggMatchError(f"{key} cannot be set for a comparison, {reason} (from {layer.source}). {instead}")
    return [
        resolve_quick([*layers, Layer("the comparison", {"method.name": method, "data.fold": fold})])
        for method in methods
        for fold in range(folds)
    ]


def place(plan: Sequence[RunSettings], out: Path) -> list[PlannedRun]:
    """The planned runs, each with its folder `out/METHOD/foldN`."""
    runs: dict[Path, PlannedRun] = {}
    for settings in plan:
        name, fold = short_name(settings.method_name), settings.data.fold
        run = PlannedRun(settings, out / name / f"fold{fold}", f"{name} fold {fold}")
        same = runs.setdefault(run.path, run)
        if same.settings.method_name != settings.method_name:
            raise AggMatchError(
                f"{same.settings.method_name} and {settings.method_name} would share the folder {run.path}. "
                f"Rename one of them."
            )
    return list(runs.values())


def find_misfits(
    runs: Sequence[PlannedRun], *, download: bool = False, on_read: Callable[[DataSet, Split], None] | None = None
) -> dict[str, str]:
    """Return the methods whose batches cannot be made of the labelled images → why; call it before the first run.

    download: whether missing files of the data set are fetched. on_read: called with the data set and the labels of the
    first run that is not finished. Finished runs need no data. Raises an `AggMatchError` if the labelled images cannot
    be drawn, which affects all methods.
    """
    missing = [run.settings for run in runs if not run.finished]
    if not missing:
        return {}
    data = missing[0].load_data(download=download)
    check_images(data.train.pixels)
    if not len(data.test):
        raise AggMatchError(f"{data.name} has no test images, so methods cannot be compared. Add test images.")
    if on_read:
        on_read(data, make_split(data, missing[0].data))
    misfits = {}
    for settings in missing:
        split = make_split(data, settings.data)
        try:
            method = load_method(settings.method_name)
            if method.balanced:
                batch = method.labeled_batch(settings.method, settings.train.batch, split.counts)
                check_balance(split.labels, data.classes, batch)
        except AggMatchError as error:
            misfits[settings.method_name] = str(error)
    return misfits


def compare(runs: Sequence[StoredRun]) -> Table:
    """Mean ± sample standard deviation of finished runs over the folds, best method first.

    A fold that a method lacks is an empty cell. Runs on frozen features also give the rows of the classic learners that
    they measured on the same features and labels. The title names data set, labels, steps, network and hardware. The
    recipe is in the title if all runs share it, and a column if they differ.
    """
    finished = finished_of(runs)
    recipes = {run.settings.recipe for run in finished}
    table = for_machines(runs)
    first, steps = finished[0], " / ".join(map(str, sorted({run.steps for run in finished})))
    shared = f"{first.settings.recipe} recipe, " if len(recipes) == 1 else ""
    title = f"{first.data_name}, {first.labels} labels, {steps} steps, {shared}"
    title += f"test accuracy of the {first.settings.train.evaluated} network at the last step, {first.hardware}"
    return replace(table.without("recipe") if shared else table, title=title)


def for_machines(runs: Sequence[StoredRun]) -> Table:
    """The same rows without a title, always with the recipe; classic learners have none."""
    finished = finished_of(runs)
    folds = sorted({run.fold for run in finished})
    rows: list[list[Any]] = []
    for (method, recipe), members in group_by(finished, lambda run: (run.method, run.settings.recipe)).items():
        accuracies = {run.fold: run.accuracy for run in members if run.accuracy is not None}
        seconds = statistics.mean(run.seconds or 0.0 for run in members)
        numbers = [*mean_and_deviation(list(accuracies.values())), len(members)]
        rows.append([method, recipe, *numbers, *map(accuracies.get, folds), seconds])
    rows += [
        [name, None, *mean_and_deviation(list(of.values())), len(of), *map(of.get, folds), None]
        for name, of in probes(finished).items()
    ]
    columns = ["method", "recipe", MEAN, "± std", "n", *(f"fold {fold}" for fold in folds), "seconds"]
    mean = columns.index(MEAN)
    return Table(columns, sorted(rows, key=lambda row: -row[mean]))


def finished_of(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """The finished runs. Raises an `AggMatchError` if there is none."""
    finished = [run for run in runs if run.finished]
    if not finished:
        raise AggMatchError("There is nothing to compare: no run finished.")
    return finished


def probes(runs: Sequence[StoredRun]) -> dict[str, dict[int, float]]:
    """Return the accuracies of classic learners on the features of these runs: name → fold → percent."""
    found: dict[str, dict[int, float]] = {}
    for run in runs:
        for name, accuracy in run.probes.items():
            found.setdefault(name + SAME, {})[run.fold] = accuracy
    return found


def remarks(runs: Sequence[StoredRun], table: Table) -> Iterator[str]:
    """Yield what to know before you believe the table of these runs."""
    draws = {run.fold: [run.drawn["labeled"], run.drawn["labels"]] for run in runs if run.finished and run.path}
    if len(draws) > 1 and len({json.dumps(sorted(zip(*draw, strict=True))) for draw in draws.values()}) == 1:
        yield (
            "All folds have the same labels, so ± shows only the chance in training. To compare other draws of the "
            "labels, use fewer of them: --labels N."
        )
    if (best := simpler(table)) and all(run.tested is None or run.tested >= FEW_TEST_IMAGES for run in runs):
        yield f"No method is better than {best}: use it, it is simpler (docs/pretrained.md)."


def simpler(table: Table) -> str | None:
    """Return the best classic learner of a comparison, if none of its methods is better."""
    mean = table.columns.index(MEAN)
    means = {str(row[0]): float(row[mean]) for row in table.rows}
    methods = [mean for name, mean in means.items() if SAME not in name]
    best = at_least_as_good({name: mean for name, mean in means.items() if SAME in name}, max(methods))
    return best and best.removesuffix(SAME)


def write(runs: Sequence[StoredRun], out: Path) -> list[Path]:
    """Write a comparison as `comparison.csv`, `.json` and `.md`, and return the paths."""
    table, machines = compare(runs), for_machines(runs)
    contents = {"csv": machines.csv(), "json": machines.json() + "\n", "md": f"{table.title}\n\n{table.markdown()}"}
    return write_texts(out, {f"comparison.{suffix}": text for suffix, text in contents.items()})
