"""The one training loop: steps, metrics, evaluations, checkpoints, and a clean stop at any moment."""

import platform
import signal
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import aggmatch
from aggmatch.config import Layer, differences, flatten
from aggmatch.data import DataSet, Images, Split, load, make_split
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import accuracies, evaluate
from aggmatch.files import write_atomically
from aggmatch.training import checkpoint as checkpoints
from aggmatch.training.checkpoint import Checkpoint, pack
from aggmatch.training.folder import MetricsFile, RunFolder, read_metrics
from aggmatch.training.meters import NonFiniteError
from aggmatch.training.settings import RunSettings, resolve
from aggmatch.training.state import TrainState, choose_device
from aggmatch.training.tracking import Tracker


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
    state: TrainState
    seconds_before: float = 0.0
    metrics_position: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Time spent training, earlier parts of a resumed run included."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def labeled(self) -> Images:
        """The labelled images with their given labels."""
        return Images(self.data.train.pixels[self.split.labeled], self.split.labels)

    def train(self) -> Iterator[dict[str, Any]]:
        """Train to the last step, yielding every record that goes to `metrics.jsonl`.

        Raises `Stopped` after saving when a signal asks for it, and `AggMatchError` when a loss is not finite.
        """
        state, train, runtime = self.state, self.settings.train, self.settings.runtime
        metrics = MetricsFile(self.folder.metrics, self.metrics_position)
        tracker = Tracker(self.folder.tensorboard, state.steps_done) if runtime.tensorboard else None
        self.started = mark = time.monotonic()
        mark_step = state.steps_done
        try:
            with signals() as received:
                while state.steps_done < train.steps:
                    state.step()
                    step, last = state.steps_done, state.steps_done == train.steps
                    record: dict[str, Any] = {}
                    if step % train.log_every == 0 or last:
                        record = self.read_log()
                        now = time.monotonic()
                        rate = (step - mark_step) * state.images_per_step / max(now - mark, 1e-9)
                        record |= {"images_per_second": round(rate, 1)}
                        mark, mark_step = now, step
                    if step % train.evaluate_every == 0 or last:
                        record |= accuracies(state.method, state.average, state.online, self.data.test, self.labeled)
                        mark, mark_step = time.monotonic(), step  # the rate is that of training alone
                    if record:
                        record = {"step": step, "seconds": round(self.seconds, 3)} | record
                        metrics.write(record)
                        if tracker:
                            tracker.write(record)
                        yield record
                    if received or last or step % runtime.checkpoint_every == 0:
                        self.save(metrics.position)
                    if received and not last:
                        raise Stopped(step, received[0])
        except NonFiniteError as error:
            raise AggMatchError(
                f"Training stopped: {error}. {self.last_good()} Try a lower learning rate (--set optim.lr=...)."
            ) from None
        finally:
            metrics.close()
            if tracker:
                tracker.close()
        self.finish()

    def read_log(self) -> dict[str, Any]:
        """Means since the last log step: the only place where a step's values reach the host."""
        state = self.state
        progress = (state.steps_done - 1) / self.settings.train.steps
        rate = self.settings.optim.lr * float(torch.cos(torch.tensor(7 * torch.pi / 16 * progress)))
        status = {name: value.tolist() for name, value in state.method.status().items()}
        return {**state.meters.read(), "lr": rate, **status}

    def save(self, metrics_position: int) -> None:
        """Write a checkpoint, but never of a run that has gone bad."""
        self.state.meters.check()
        facts = {"seconds": self.seconds, "metrics_position": metrics_position}
        checkpoints.save(self.folder.checkpoints, self.state.steps_done, self.state.capture(**facts))

    def last_good(self) -> str:
        """A sentence on what can be gone back to."""
        paths = checkpoints.found(self.folder.checkpoints)
        return f"The last good checkpoint is {paths[0]}." if paths else "No checkpoint had been written yet."

    def finish(self) -> None:
        """Write the model and the summary."""
        state = self.state
        facts = {
            "model": self.settings.model.name,
            "classes": list(self.data.classes),
            "channels": state.evaluated.channels,
            "size": self.data.train.pixels.shape[-1],
            "network": self.settings.train.evaluated,
            "labels": len(self.split.labeled),
            "images": len(self.data.train),
        }
        summary = self.summarize()  # leaves the method prepared to predict with the evaluated network
        tensors = {f"network.{name}": tensor for name, tensor in state.evaluated.state_dict().items()}
        tensors |= {f"method.{name}": state.method.get_buffer(name) for name in state.method.predictor}
        write_atomically(self.folder.model, pack(Checkpoint(tensors, facts)))
        self.folder.write_json(self.folder.summary, summary)

    def summarize(self) -> dict[str, Any]:
        """The run's result with everything a reader needs to judge it."""
        settings, state = self.settings, self.state
        final = evaluate(state.method, state.evaluated, self.data.test, self.labeled)
        records = read_metrics(self.folder.metrics)
        name = f"accuracy_{settings.train.evaluated}"
        evaluations = [record[name] for record in records if name in record]
        last_log: dict[str, Any] = next((record for record in reversed(records) if "loss" in record), {})
        return {
            "data": settings.data.name,
            "labels": len(self.split.labeled),
            "fold": settings.data.fold,
            "seed": settings.train.seed,
            "method": settings.method_name,
            "steps": state.steps_done,
            "network": settings.train.evaluated,
            "accuracy": final.accuracy,
            "accuracy_median_of_last_20": statistics.median(evaluations[-20:]),
            "class_accuracy": dict(zip(self.data.classes, final.class_accuracy, strict=True)),
            **{key: value for key, value in last_log.items() if key.startswith(("accuracy_", "pseudo_"))},
            "seconds": round(self.seconds, 1),
            "hardware": hardware(state.device),
            "versions": {
                "aggmatch": aggmatch.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        }


def start(settings: RunSettings, out: Path, *, download: bool = False) -> Run:
    """Begin a run in a new folder. Data and split are read first, so a mistake there leaves no folder behind."""
    folder = RunFolder(out)
    if folder.holds_run:
        raise AggMatchError(f"{out} holds a run already. Continue it with --resume, or choose another --out.")
    device = choose_device(settings.runtime.device)
    data = load(settings.data.name, Path(settings.runtime.data_dir), download)
    split = make_split(data, settings.data)
    state = TrainState(settings, data, split, device)
    folder.create()
    split.write(folder.split)
    folder.write_json(folder.config, settings.to_dict())
    return Run(settings, data, split, folder, state)


def resume(out: Path, changes: list[Layer], *, download: bool = False) -> Run:
    """Continue the run of a folder. `changes` may only touch where it runs, not what it computes."""
    folder = RunFolder(out)
    if not folder.holds_run:
        raise AggMatchError(f"Cannot resume {out}: it holds no run. Start one without --resume.")
    before = folder.read_json(folder.config)
    stored = Layer(str(folder.config), flatten(before))
    settings = resolve([stored, *changes])
    changed = {
        key: pair for key, pair in differences(before, settings.to_dict()).items() if not key.startswith("runtime.")
    }
    if changed:
        listed = "; ".join(f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items())
        raise AggMatchError(f"Cannot resume {out}: {listed}. Start a new run with another --out, or drop the change.")
    data = load(settings.data.name, Path(settings.runtime.data_dir), download)
    split = Split.read(folder.split, data)
    state = TrainState(settings, data, split, choose_device(settings.runtime.device))
    run = Run(settings, data, split, folder, state)
    latest = checkpoints.load_newest(folder.checkpoints)
    if latest is not None:
        state.restore(latest)
        run.seconds_before = latest.facts["seconds"]
        run.metrics_position = latest.facts["metrics_position"]
    return run


@contextmanager
def signals() -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM instead of dying of them; a second Ctrl-C does its usual work.

    Outside the main thread, where Python allows no handlers, nothing is collected.
    """
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
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


def hardware(device: torch.device) -> str:
    """Name of what it ran on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"
