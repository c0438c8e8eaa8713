"""The one training loop: steps, metrics, evaluations, checkpoints, and a clean stop at any moment."""

import math
import platform
import signal
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import aggmatch
from aggmatch.augment import check_images
from aggmatch.config import Changes, as_layers, differences
from aggmatch.data import DataSet, Images, Split, is_folder, load_for, locate, make_split
from aggmatch.devices import choose_device, hardware
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import accuracies, evaluate
from aggmatch.files import write_atomically
from aggmatch.registry import absolute
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.checkpoint import Checkpoint, pack
from aggmatch.runs.folder import RunFolder
from aggmatch.runs.log import Log, read_log
from aggmatch.runs.stats import median_of_last
from aggmatch.settings import RunSettings, parts_named
from aggmatch.training.optim import cosine_rate
from aggmatch.training.trainer import Trainer


class Stopped(Exception):  # noqa: N818 - not an error: the run is saved and can go on
    """A signal asked the run to stop; it was saved at `step`."""

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal_number = step, signal_number


@dataclass
class Run:
    """One training run in its folder: made by `start` or `resume`, advanced by iterating over `train()`."""

    settings: RunSettings
    data: DataSet
    split: Split
    folder: RunFolder
    state: Trainer
    seconds_before: float = 0.0
    log_position: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Time spent training, earlier parts of a resumed run included."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.folder.summary.exists()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go back to where a checkpoint was taken."""
        try:
            self.state.restore(checkpoint)
            self.seconds_before = checkpoint.facts["seconds"]
            self.log_position = checkpoint.facts["log_position"]
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, KeyError) as error:
            raise AggMatchError(
                f"Cannot resume {self.folder.path}: its newest checkpoint is not of this run or of this version of "
                f"aggmatch, {aggmatch.__version__}."
            ) from error

    @property
    def labeled(self) -> Images:
        """The labelled images with their given labels."""
        return Images(self.data.train.pixels[self.split.labeled], self.split.labels)

    def train(self) -> Iterator[dict[str, Any]]:
        """Train to the last step, yielding every record that goes to `metrics.jsonl`; nothing to do if it is finished.

        Raises `Stopped` after saving when a signal asks for it, and `AggMatchError` when a loss is not finite.
        """
        if self.finished:
            return
        state, train, runtime = self.state, self.settings.train, self.settings.runtime
        snapshots = {math.ceil(share * train.steps) for share in runtime.snapshots}
        with self.folder.locked(), self.open_log() as log, self.keeping_place(log), signals() as received:
            now = {"step": state.steps_done, "started": timestamp()}
            self.folder.note_session(now | surroundings(state))
            pace = Pace(state)
            while state.steps_done < train.steps:
                state.step()
                record: dict[str, Any] = {}
                if self.due(train.log_every):
                    record |= self.read_metrics() | {"images_per_second": pace.read()}
                if self.due(train.evaluate_every):
                    record |= accuracies(state.method, state.average, state.online, self.data.test, self.labeled)
                    pace.restart()
                if record:
                    record = {"step": state.steps_done, "seconds": round(self.seconds, 3)} | record
                    log.write(record)
                if state.steps_done in snapshots:
                    self.keep_snapshot()
                    pace.restart()
                stopping = bool(received)  # a signal from here on finds the next step, which is saved in turn
                if stopping or self.due(runtime.checkpoint_every):
                    self.save(log)
                    pace.restart()
                if record:
                    yield record
                if stopping and state.steps_done < train.steps:
                    raise Stopped(state.steps_done, received[0])
            self.finish()

    @contextmanager
    def keeping_place(self, log: Log) -> Iterator[None]:
        """Count the time within, and note where log and time stand at its end: `train()` may be called once more."""
        self.started = time.monotonic()
        try:
            yield
        finally:
            self.log_position, self.seconds_before = log.position, self.seconds
            self.started = time.monotonic()

    def due(self, every: int) -> bool:
        """Whether this step is one of every so many, or the last."""
        return self.state.steps_done % every == 0 or self.state.steps_done == self.settings.train.steps

    def open_log(self) -> Log:
        """The log, from where the run stands."""
        tensorboard = self.folder.tensorboard if self.settings.runtime.tensorboard else None
        return Log(self.folder.metrics, self.log_position, tensorboard=tensorboard, step=self.state.steps_done)

    def read_metrics(self) -> dict[str, Any]:
        """Means since the last log step: the only place where a step's values reach the host."""
        self.check()
        state, settings = self.state, self.settings
        progress = torch.tensor((state.steps_done - 1) / settings.train.steps)
        rate = float(cosine_rate(settings.optim.lr, progress))
        status = {name: value.tolist() for name, value in state.method.status().items()}
        means = state.meters.read()
        if "pseudo_recall" in means and means["pseudo_coverage"] > 0:  # there is no precision of nothing
            means["pseudo_precision"] = means["pseudo_recall"] / means["pseudo_coverage"]
        return {**means, "lr": rate, **status}

    def save(self, log: Log) -> None:
        """Write a checkpoint, but never of a run that has gone bad."""
        self.check()
        self.check_weights()
        facts = {"seconds": self.seconds, "log_position": log.settle()}
        checkpoints.save(self.folder.checkpoints, self.state.steps_done, self.state.checkpoint(**facts))

    def keep_snapshot(self) -> None:
        """Write networks and method as they are now, for analyses; nothing of it is needed to go on."""
        try:
            self.folder.snapshots.mkdir(exist_ok=True)
            write_atomically(self.folder.snapshot(self.state.steps_done), pack(self.state.snapshot(**self.facts())))
        except (OSError, AggMatchError) as error:
            warnings.warn(f"A snapshot for analyses is missing: {error}", stacklevel=2)

    def facts(self) -> dict[str, Any]:
        """What it takes to rebuild the networks without the data."""
        return {
            "model": self.settings.model.name,
            "classes": list(self.data.classes),
            "channels": self.state.evaluated.channels,
            "size": self.data.train.pixels.shape[-1],
            "network": self.settings.train.evaluated,
            "mixed": self.state.evaluated.mixed,
            "labels": len(self.split.labeled),
            "images": len(self.data.train),
            "step": self.state.steps_done,
        }

    def check(self) -> None:
        """Stop the run if any logged value was not finite since it started."""
        if bad := self.state.meters.first_bad_value():
            raise self.diverged(f"{bad.name} is not finite at step {bad.step}")

    def check_weights(self) -> None:
        """Stop the run if a weight is not finite: no loss has been computed from the last step's weights yet."""
        if not self.state.finite:
            raise self.diverged(f"weights are not finite after step {self.state.steps_done}")

    def diverged(self, what: str) -> AggMatchError:
        """What is wrong, what can be gone back to, and what to do."""
        return AggMatchError(
            f"Training stopped: {what}. {self.last_good()} "
            f"Start a new run with a lower learning rate (--set optim.lr=...)."
        )

    def last_good(self) -> str:
        """A sentence on what can be gone back to."""
        paths = checkpoints.found(self.folder.checkpoints)
        return f"The last good checkpoint is {paths[0]}." if paths else "No checkpoint had been written yet."

    def finish(self) -> None:
        """Write the model and the summary."""
        state = self.state
        summary = self.summarize()  # leaves the method prepared to predict with the evaluated network
        tensors = {f"network.{name}": tensor for name, tensor in state.evaluated.state_dict().items()}
        tensors |= {f"method.{name}": state.method.get_buffer(name) for name in state.method.predictor}
        write_atomically(self.folder.model, pack(Checkpoint(tensors, self.facts())))
        self.folder.write_json(self.folder.summary, summary)

    def summarize(self) -> dict[str, Any]:
        """The run's result with everything a reader needs to judge it."""
        settings, state = self.settings, self.state
        final = evaluate(state.method, state.evaluated, self.data.test, self.labeled)
        records = read_log(self.folder.metrics)
        name = f"accuracy_{settings.train.evaluated}"
        median = median_of_last([record[name] for record in records if name in record])
        assert median is not None, "every run ends with an evaluation"
        last_log: dict[str, Any] = next((record for record in reversed(records) if "loss" in record), {})
        return {
            "data": settings.data.name,
            "labels": len(self.split.labeled),
            "fold": self.split.fold,
            "seed": settings.train.seed,
            "method": settings.method_name,
            "steps": state.steps_done,
            "network": settings.train.evaluated,
            "accuracy": final.accuracy,
            "accuracy_median_of_last_20": median.value,
            "class_accuracy": dict(zip(self.data.classes, final.class_accuracy, strict=True)),
            **{key: value for key, value in last_log.items() if key.startswith(("accuracy_", "pseudo_"))},
            "seconds": round(self.seconds, 1),
            **surroundings(state),
            "finished": timestamp(),
        }


def surroundings(state: Trainer) -> dict[str, Any]:
    """Hardware and versions that a run is trained with."""
    versions = {"aggmatch": aggmatch.__version__, "torch": torch.__version__, "python": platform.python_version()}
    return {"hardware": hardware(state.device, state.threads), "versions": versions}


def timestamp() -> str:
    """The moment, for people and files."""
    return datetime.now(UTC).isoformat(timespec="seconds")


class Pace:
    """Images a second since it was last read or restarted."""

    def __init__(self, state: Trainer) -> None:
        self.state = state
        self.restart()

    def restart(self) -> None:
        """Count from here; what took time before (an evaluation, say) does not count."""
        self.since, self.steps = time.monotonic(), self.state.steps_done

    def read(self) -> float:
        """The rate so far; counts anew."""
        steps, seconds = self.state.steps_done - self.steps, time.monotonic() - self.since
        self.restart()
        return round(steps * self.state.images_per_step / max(seconds, 1e-9), 1)


def start(settings: RunSettings, out: str | Path, *, data: DataSet | None = None, download: bool = False) -> Run:
    """Begin a run in a new folder, on the data set that the settings name or on `data`.

    Data and split are read first, so a mistake there leaves no folder behind.
    """
    folder = RunFolder(Path(out))
    folder.check_free()
    device = choose_device(settings.runtime.device)
    if data is None:
        settings = located(settings)
    if is_folder(settings.data.name) and folder.path.resolve().is_relative_to(Path(settings.data.name).resolve()):
        raise AggMatchError(
            f"{out} lies in the folder of images, which would take it for a class. Choose another --out."
        )
    data = data or load_for(settings.data, settings.runtime.data_dir, download)
    check_data(data, settings)
    split = make_split(data, settings.data)
    if settings.data.split is not None:  # it decides both, whatever the settings say
        settings = replace(settings, data=replace(settings.data, labels=len(split.labeled), fold=split.fold))
    state = Trainer(settings, data, split, device)
    folder.create(split.encoded(), settings.to_dict())
    return Run(settings, data, split, folder, state)


def resume(
    out: str | Path,
    changes: Changes = (),
    *,
    data: DataSet | None = None,
    download: bool = False,
    allow: Iterable[str] = (),
) -> Run:
    """Continue the run of a folder.

    changes: settings of section `runtime`, which say where it runs; other settings must stay as they are. The name of a
        folder of images may change if the images are the same: the run remembers the new place.
    data: the data set, if it cannot be read by its name. download: whether missing files of it are fetched.
    allow: code that the folder may name, see `RunFolder.settings`.

    Example: `for record in resume("runs/mine").train(): print(record["step"])`.
    """
    folder = RunFolder(Path(out))
    if not folder.holds_run:
        raise AggMatchError(f"Cannot resume {out}: it holds no run. Start one without --resume.")
    settings = resumed_settings(folder, changes, allow)
    if data is None:
        settings = located(settings)
        if is_folder(name := settings.data.name) and not Path(name).is_dir():
            raise AggMatchError(
                f"There is no folder {name} any more. If it has moved: aggmatch train NEW/PLACE --resume --out {out}"
            )
    data = data or load_for(settings.data, settings.runtime.data_dir, download)
    check_data(data, settings)
    split = Split.read(folder.split, data)
    if not split.tested_on(data):
        raise AggMatchError(
            f"Cannot resume {out}: the test images of {data.name} are not those it began with. Put these back, or "
            f"start a new run with another --out."
        )
    state = Trainer(settings, data, split, choose_device(settings.runtime.device))
    folder.note_data(settings.data.name)
    run = Run(settings, data, split, folder, state)
    latest = checkpoints.load_newest(folder.checkpoints)
    if latest is not None:
        run.restore(latest)
    elif folder.metrics.exists() and not folder.summary.exists():
        warnings.warn(f"{out} has no checkpoint; its run begins again.", stacklevel=2)
    return run


def located(settings: RunSettings) -> RunSettings:
    """The settings with the whole path of a folder of images."""
    return replace(settings, data=replace(settings.data, name=locate(settings.data.name)))


def check_data(data: DataSet, settings: RunSettings) -> None:
    """Refuse, before there is a run, what no run can be made of."""
    if data.name != settings.data.name:
        raise AggMatchError(f"The data set is called '{data.name}', but data.name is '{settings.data.name}'.")
    if not len(data.test):
        raise AggMatchError(f"{data.name} has no test images, so its accuracy could not be measured.")
    check_images(data.train.pixels)


def resumed_settings(folder: RunFolder, changes: Changes, allow: Iterable[str] = ()) -> RunSettings:
    """Settings of the run in a folder with `changes`, which are refused if they touch what it computes."""
    asked = {key: value for layer in as_layers(changes) for key, value in layer.values.items()}
    allowed = [*allow, *parts_named(asked)]
    settings = stored = folder.settings(allow=allowed)
    method = absolute(asked.get("method.name", stored.method_name))
    if method != stored.method_name:  # to which the settings of the other would be unknown
        changed = {"method.name": (stored.method_name, method)}
    else:
        settings = folder.settings(changes, allow=allowed)
        differing = differences(stored.to_dict(), settings.to_dict())
        changed = {key: pair for key, pair in differing.items() if not key.startswith("runtime.")}
    places = changed.get("data.name")
    if places and all(map(is_folder, places)):  # whether the images are the same, the split tells
        del changed["data.name"]
    if changed:
        listed = "; ".join(f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise AggMatchError(
            f"Cannot resume {folder.path}: {listed}. Start a new run with another --out, or drop the change."
        )
    return settings


def start_or_resume(settings: RunSettings, out: Path, *, download: bool = False) -> Run:
    """The run of these settings in a folder: begun if it is not there, continued if it is."""
    if RunFolder(out).holds_run:
        return resume(out, [settings.layer("the new run")], download=download)
    return start(settings, out, download=download)


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them; a second Ctrl-C does its usual work.

    Outside the main thread, where Python allows no handlers, nothing is collected.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and sys.stderr.isatty():
            print("\nStopping after this step; Ctrl-C again stops at once, without saving.", file=sys.stderr)
        received.append(number)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
