"""A training run: the loop with its metrics, evaluations, checkpoints and clean stop."""

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from aggmatch import __version__
from aggmatch.data import DataSet, Images, Split
from aggmatch.devices import provenance
from aggmatch.distributed import Processes
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.checkpoint import Checkpoint, pack
from aggmatch.runs.folder import RunFolder
from aggmatch.runs.log import Log
from aggmatch.settings import RunSettings
from aggmatch.signals import signals
from aggmatch.storage.files import sealed, write_atomically
from aggmatch.training.meters import Pace, pseudo_label_metrics
from aggmatch.training.optim import learning_rate
from aggmatch.training.summary import summarize, timestamp
from aggmatch.training.trainer import Trainer


class Stopped(Exception):  # noqa: N818 - not an error: the run is saved and can be resumed
    """Raised by `Run.train` after SIGINT or SIGTERM, once the run is saved.

    step: the number of steps that are done. signal_number: the signal.

    Example: `except Stopped as stop: print("saved at step", stop.step)`.
    """

    def __init__(self, step: int, signal_number: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.step, self.signal_number = step, signal_number


@dataclass(repr=False)
class Run:
    """A training run and its folder. `start` and `resume` make it; iterating over `train()` advances it.

    With several processes each has such a run, and only that of process 0 writes to the folder.

    Example: `for record in start(resolve({}), "runs/mine").train(): print(record["step"], record.get("loss"))`.
    """

    settings: RunSettings
    data: DataSet
    split: Split
    """Which training images carry which label."""
    folder: RunFolder
    state: Trainer
    """Both networks, the method, the optimizer and the counters."""
    seconds_before: float = 0.0
    """Time spent training before `started`."""
    log_position: int = 0
    """Bytes of the metrics file up to this state."""
    started: float = field(default_factory=time.monotonic)
    new: bool = False
    """Whether this process has created the folder."""

    def __repr__(self) -> str:
        return f"<Run in {self.folder.path}: step {self.state.steps_done:,} of {self.settings.train.steps:,}>"

    @property
    def seconds(self) -> float:
        """Time spent training, with the earlier parts of a resumed run."""
        return self.seconds_before + time.monotonic() - self.started

    @property
    def processes(self) -> Processes:
        """The processes that share the work; only the first one writes."""
        return self.state.processes

    @property
    def finished(self) -> bool:
        """Whether the run was trained to its last step and its result is written."""
        return self.folder.summary.exists()

    @property
    def labeled(self) -> Images:
        """The labelled training images with their given labels."""
        return Images(self.data.train.pixels[self.split.labeled], self.split.labels)

    def train(self) -> Iterator[dict[str, Any]]:
        """Train to the last step and yield each record that is written to `metrics.jsonl`.

        A record holds `step`, `seconds`, and the metrics or accuracies of this step. A finished run yields nothing.
        Iteration may stop early and continue with another call. Raises `Stopped` after a signal, when the run is saved,
        and `AggMatchError` if a loss or weight is not finite.
        """
        if self.finished:
            return
        state, train, runtime = self.state, self.settings.train, self.settings.runtime
        snapshots = {math.ceil(share * train.steps) for share in runtime.snapshots}.union(runtime.snapshot_steps)
        self.processes.check_same("the step to continue from", state.steps_done)
        with self.opened() as log, signals() as received:
            if train.start_from and state.steps_done == 0:
                self.save(log)  # the earlier run may be gone when this one is resumed
            pace = Pace(state.steps_done)
            while state.steps_done < train.steps:
                self.step()
                record: dict[str, Any] = {}
                if self.due(train.log_every):
                    record |= self.read_metrics() | {
                        "images_per_second": pace.read(state.steps_done, state.images_per_step)
                    }
                if self.due(train.evaluate_every):
                    record |= self.read_accuracies()
                    pace.restart(state.steps_done)
                if record:
                    record = {"step": state.steps_done, "seconds": round(self.seconds, 3)} | record
                    if log:
                        log.write(record)
                if state.steps_done in snapshots:
                    self.keep_snapshot()
                    pace.restart(state.steps_done)
                stopping = self.stop_signal(received)  # a later signal stops the run after the next step
                if stopping or self.due(runtime.checkpoint_every):
                    self.save(log)
                    pace.restart(state.steps_done)
                if record:
                    yield record
                if stopping and state.steps_done < train.steps:
                    self.processes.share(None)  # the others leave after process 0 has saved
                    raise Stopped(state.steps_done, stopping)
            self.finish()

    def step(self) -> None:
        """Train one step. If the very first one fails, the new folder is deleted."""
        with self.folder.discarded_on_error(new=self.new and self.state.steps_done == 0):
            self.state.step()

    def due(self, every: int) -> bool:
        """Whether it is time for something that happens every N steps and at the last one."""
        return self.state.steps_done % every == 0 or self.state.steps_done == self.settings.train.steps

    def stop_signal(self, received: list[int]) -> int:
        """Return the signal that stops the run, which any of the processes may have received; 0 for none.

        On a GPU the processes agree on it on log steps: in other steps no host waits for a device.
        """
        own = received[0] if received else 0
        if not self.processes.connected:
            return own
        agreeing = self.state.device.type == "cpu" or self.due(self.settings.train.log_every)
        return self.processes.largest(own) if agreeing else 0

    @contextmanager
    def opened(self) -> Iterator[Log | None]:
        """Lock the folder and yield the log, open at the current state; None on processes that do not write.

        Time and log position are stored afterwards: `train()` can be called again.
        """
        state, self.started = self.state, time.monotonic()
        if not self.processes.first:
            yield None
            return
        tensorboard = self.folder.tensorboard if self.settings.runtime.tensorboard else None
        with (
            self.folder.locked(),
            Log(self.folder.metrics, self.log_position, tensorboard=tensorboard, step=state.steps_done) as log,
        ):
            now = {"step": state.steps_done, "started": timestamp()}
            self.folder.note_session(now | provenance(state.device, state.threads, self.processes.world))
            try:
                yield log
            finally:
                self.log_position, self.seconds_before = log.position, self.seconds
                self.started = time.monotonic()

    # Metrics ------------------------------------------------------------------------------------------------------

    def read_metrics(self) -> dict[str, Any]:
        """Return the means since the last log step: the only place where values of a step reach the host."""
        self.check_finite()
        state, settings = self.state, self.settings
        progress = torch.tensor((state.steps_done - 1) / settings.train.steps)
        rate = float(learning_rate(settings.optim, progress))
        status = {name: value.tolist() for name, value in state.method.status().items()}
        return {**pseudo_label_metrics(state.meters.read()), "lr": rate, **status}

    def read_accuracies(self) -> dict[str, float]:
        """Return the test accuracies of both networks in percent; nothing without test images."""
        state, inputs = self.state, self.state.inputs
        if not len(inputs.test):
            return {}
        networks = {"accuracy_average": state.average, "accuracy_online": state.online}
        return {
            name: evaluate(state.method, network, inputs.test, inputs.labeled, threads=state.threads).accuracy
            for name, network in networks.items()
        }

    def check_finite(self, *, weights: bool = False) -> None:
        """Raise an `AggMatchError` if a logged value or, with `weights`, a weight is not finite.

        The weights of the last step have not produced a loss yet, so they are checked before they are saved.
        """
        if bad := self.state.meters.first_bad_value():
            problem = f"{bad.name} is not finite at step {bad.step}"
        elif weights and not self.state.finite:
            problem = f"weights are not finite after step {self.state.steps_done}"
        else:
            return
        saved = checkpoints.found(self.folder.checkpoints)
        newest = f"The last good checkpoint is {saved[0]}." if saved else "There is no checkpoint yet."
        advice = "Start a new run with a lower learning rate: optim.lr."
        raise AggMatchError(f"Training stopped: {problem}. {newest} {advice}")

    # Files --------------------------------------------------------------------------------------------------------

    def save(self, log: Log | None) -> None:
        """Write a checkpoint, unless the run has diverged; without a log, this process does not write."""
        self.check_finite(weights=True)
        if log is None:
            return
        facts: dict[str, Any] = {**self.facts(), "seconds": self.seconds, "log_position": log.sync()}
        facts |= {"configuration": self.settings.identity(), "split": self.split.digests}
        checkpoints.save(self.folder.checkpoints, self.state.steps_done, self.state.checkpoint(**facts))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        try:
            self.state.restore(checkpoint)
            self.seconds_before = checkpoint.facts["seconds"]
            self.log_position = checkpoint.facts["log_position"]
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, KeyError) as error:
            raise AggMatchError(
                f"Cannot resume {self.folder.path}: its newest checkpoint does not fit this run or aggmatch "
                f"{__version__}. Use the version that wrote it, or start a new run."
            ) from error

    def keep_backbone(self) -> None:
        """Write the frozen backbone, once: all networks of the run use it, and predicting needs it."""
        frozen = self.state.online.frozen if self.processes.first else None
        if frozen is not None and not self.folder.backbone.exists():
            write_atomically(self.folder.backbone, pack(Checkpoint(frozen.state_dict(), {})))

    def keep_snapshot(self) -> None:
        """Write both networks and the method for analyses. If that fails, only warn: training does not need them."""
        if not self.processes.first:
            return
        try:
            self.folder.snapshots.mkdir(exist_ok=True)
            write_atomically(self.folder.snapshot(self.state.steps_done), pack(self.state.snapshot(**self.facts())))
        except (OSError, AggMatchError) as error:
            warnings.warn(f"A snapshot for analyses is missing: {error}", stacklevel=2)

    def facts(self) -> dict[str, Any]:
        """Return the facts from which the networks can be rebuilt without the data."""
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

    def finish(self) -> None:
        """Evaluate the reported network, and write the model and the summary."""
        state, inputs = self.state, self.state.inputs
        shown = inputs.test if len(self.data.test) else inputs.labeled  # without test images: only prepares the method
        final = evaluate(state.method, state.evaluated, shown, inputs.labeled, threads=state.threads)
        if self.processes.first:
            summary = summarize(self, final)
            tensors = {f"network.{name}": tensor for name, tensor in state.evaluated.state_dict().items()}
            tensors |= {f"method.{name}": state.method.get_buffer(name) for name in state.method.predictor}
            write_atomically(self.folder.model, pack(Checkpoint(tensors, self.facts())))
            self.folder.write_json(self.folder.summary, sealed(summary))
        state.release()
        self.processes.share(None)  # for all processes the run is finished now
