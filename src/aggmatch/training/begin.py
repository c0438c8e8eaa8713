"""Starts a run in a new folder, and resumes the run of a folder."""

import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from aggmatch.config import Changes
from aggmatch.data import DataSet, Split, is_own_images, locate, make_split
from aggmatch.data.images import check_images
from aggmatch.distributed import Processes
from aggmatch.errors import AggMatchError
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings
from aggmatch.training.earlier import (
    check_files,
    check_unchanged,
    resumed_settings,
    stored_backbone,
    take_networks,
    taken_classifier,
)
from aggmatch.training.linear_start import start_linearly
from aggmatch.training.run import Run
from aggmatch.training.trainer import Trainer


def start(
    settings: RunSettings,
    out: str | Path,
    *,
    data: DataSet | None = None,
    download: bool = False,
    on_read: Callable[[DataSet, Split], None] | None = None,
    processes: Processes | None = None,
) -> Run:
    """Start a run in a new folder; nothing is trained before `Run.train`.

    settings: see `resolve`. out: the folder, which must be empty or not exist yet. data: the data set, if it cannot be
    read by the name in the settings; its own name must be the same. download: whether to fetch missing files of it.
    on_read: called with the data set and the drawn labels, before features of a frozen backbone are computed.
    processes: those of `distributed.joined`, which all start the same run; None for this one alone.
    Raises an `AggMatchError` if a setting does not fit the data; no folder is created then.

    Example: `start(resolve({"data.name": "digits", "method.name": "fixmatch"}), "runs/mine")`.
    """
    folder, processes = RunFolder(Path(out)), processes or Processes()
    if processes.first:
        if folder.holds_run and data is None:
            check_unchanged(folder, located(settings))
        folder.check_free()
    device = processes.device(settings.runtime.device)
    if data is None:
        settings = located(settings)
    if is_own_images(settings.data.name) and folder.path.resolve().is_relative_to(Path(settings.data.name).resolve()):
        raise AggMatchError(f"{out} is inside the folder of images, where it would be a class. Choose another.")
    data = data or read_data(settings, download, processes)
    split = make_split(data, settings.data)  # a class without a label is the first thing to correct
    check_data(data, settings)
    if settings.data.split is not None:  # it decides both
        settings = replace(settings, data=replace(settings.data, labels=len(split.labeled), fold=split.fold))
    if processes.first:
        folder.check_usable(split.encoded())
    if on_read:
        on_read(data, split)
    earlier = RunFolder(Path(settings.train.start_from)) if settings.train.start_from else None
    frozen = stored_backbone(earlier) if earlier and settings.train.backbone == "frozen" else None
    state = Trainer(settings, data, split, device, frozen, processes)
    give_start(state, split)
    if processes.first:
        folder.create(split.encoded(), settings.to_dict())
    run = Run(settings, state.data, split, folder, state, new=processes.first)
    with folder.discarded_on_error(new=run.new):
        run.keep_backbone()
    return run


def resume(
    out: str | Path,
    changes: Changes = (),
    *,
    data: DataSet | None = None,
    download: bool = False,
    allow: Iterable[str] = (),
    processes: Processes | None = None,
) -> Run:
    """Continue the run of a folder from its newest checkpoint.

    out: the folder. changes: settings of section `runtime`, which decide where it runs; other settings must not
    change. The path of a folder of images may change if the images are the same: the run remembers the new path.
    data, download: see `start`. allow: code that the folder may name, such as `my_method.py:Mine`; other code of
    the folder is not imported. Code that `changes` name is allowed too. processes: see `start`; their number may be
    another one than before.

    Example: `for record in resume("runs/mine").train(): print(record["step"])`.
    """
    folder, processes = RunFolder(Path(out)), processes or Processes()
    if not folder.holds_run:
        raise AggMatchError(f"Cannot resume {out}: it holds no run. Name the folder of a run.", options="--out")
    latest = checkpoints.load_newest(folder.checkpoints)
    if latest is not None:
        check_files(folder, latest.facts)
    settings = resumed_settings(folder, changes, allow)
    if data is None:
        settings = located(settings)
        if is_own_images(name := settings.data.name) and not Path(name).exists():
            moved = f"There is no {name} any more. If it has moved, resume with its new path (data.name)."
            raise AggMatchError(moved, options=f"aggmatch train NEW/PATH --resume --out {out}")
    data = data or read_data(settings, download, processes)
    check_data(data, settings)
    check_unchanged(folder, settings, data)
    split = Split.read(folder.split, data)
    if not split.tested_on(data):
        raise AggMatchError(
            f"Cannot resume {out}: the test images of {data.name} have changed. Restore them, or start a new run "
            f"in another folder."
        )
    device = processes.device(settings.runtime.device)
    state = Trainer(settings, data, split, device, stored_backbone(folder), processes)
    if processes.first:
        folder.note_data(settings.data.name, settings.data.labels_file)
    run = Run(settings, state.data, split, folder, state)
    run.keep_backbone()
    if latest is not None:
        run.restore(latest)
    elif not folder.summary.exists():
        give_start(state, split)
        if folder.metrics.exists():
            warnings.warn(f"{out} has no checkpoint; training starts again from step 0.", stacklevel=2)
    return run


def give_start(state: Trainer, split: Split) -> None:
    """Set the networks of a run before its first step: those of an earlier run, or with a self-trained classifier."""
    train = state.settings.train
    earlier = RunFolder(Path(train.start_from)) if train.start_from else None
    if earlier and train.backbone == "finetune" and earlier.backbone.exists():  # it learned on frozen features
        start_linearly(state, split, taken_classifier(state, earlier))
    elif earlier:
        take_networks(state, earlier, state.data.classes)
    elif train.linear_start:
        start_linearly(state, split)


def start_or_resume(settings: RunSettings, out: Path, *, download: bool = False) -> Run:
    """Return the run of these settings in a folder: resumed if the folder holds it, otherwise started."""
    if RunFolder(out).holds_run:
        return resume(out, [settings.layer("the new run")], download=download)
    return start(settings, out, download=download)


# The data set ---------------------------------------------------------------------------------------------------------


def read_data(settings: RunSettings, download: bool, processes: Processes) -> DataSet:
    """Return the data set of the settings; process 0 reads it first and stores what can be cached."""
    with processes.first_alone():
        return settings.load_data(download=download)


def located(settings: RunSettings) -> RunSettings:
    """The settings with the absolute paths of own images and of their table of labels."""
    data, table = settings.data, settings.data.labels_file
    table = str(Path(table).resolve()) if table else None
    return replace(settings, data=replace(data, name=locate(data.name), labels_file=table))


def check_data(data: DataSet, settings: RunSettings) -> None:
    """Raise an `AggMatchError` if no run can train on the data set."""
    if data.name != settings.data.name:
        raise AggMatchError(f"The data set is called '{data.name}', but data.name is '{settings.data.name}'.")
    if not len(data.test) and settings.data.holdout > 0:
        if settings.data.test_images:
            raise AggMatchError(
                f"None of the test images of {settings.data.test_images} has a label in {data.name}, so no accuracy "
                f"can be measured. Let others be chosen: data.test_images=null",
                options="--set data.test_images=null",
            )
        raise AggMatchError(
            f"{data.name} has no test images, so no accuracy can be measured. Label at least two images of a class, "
            f"add test images, or train without them: data.holdout=0",
            options="--set data.holdout=0",
        )
    check_images(data.train.pixels)
