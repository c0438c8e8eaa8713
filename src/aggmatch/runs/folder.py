"""The folder of a run: configuration, split, metrics, checkpoints, model and summary."""

import fcntl
import json
import re
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict
from zlib import crc32

from aggmatch.config import Changes, Layer, as_layers
from aggmatch.errors import AggMatchError
from aggmatch.registry import refuse_code, short_name
from aggmatch.settings import RunSettings, parts_named, resolve
from aggmatch.storage.files import (
    SEAL,
    check_writable,
    digest,
    is_intact,
    is_part,
    read_bytes,
    remove_parts,
    sealed,
    write_all,
    write_atomically,
)
from aggmatch.validate import Count, Natural, NonNegative, Percent, parse_json, read_json, require


class Record(TypedDict):
    """Types of the values in a line of `metrics.jsonl`; methods may add values of their own."""

    step: Natural
    seconds: NotRequired[float]
    loss: NotRequired[float]
    loss_labeled: NotRequired[float]
    loss_unlabeled: NotRequired[float]
    accuracy_average: NotRequired[float]
    accuracy_online: NotRequired[float]
    pseudo_precision: NotRequired[float]
    pseudo_recall: NotRequired[float]
    pseudo_coverage: NotRequired[float]
    pseudo_auc: NotRequired[float]
    pseudo_precision_by_weight: NotRequired[list[float]]
    pseudo_class_share: NotRequired[list[float]]
    confidence: NotRequired[float]
    queue_fill: NotRequired[list[Natural]]


class Session(TypedDict):
    """Where a process trained and from which step on: a line of `sessions.jsonl`."""

    step: Natural
    started: str
    hardware: str
    versions: dict[str, str]


class Summary(TypedDict):
    """Types of the values in `summary.json`; pseudo-label values exist only if the method makes pseudo labels."""

    data: str
    labels: Count
    fold: Natural
    method: str
    recipe: NotRequired[str]
    """Old summaries have none; `config.json` has it."""
    steps: Natural
    network: str
    accuracy: Percent | None
    """None without test images, as the next three are."""
    accuracy_median_of_last_20: Percent | None
    accuracy_average: Percent | None
    accuracy_online: Percent | None
    class_accuracy: dict[str, Percent]
    probes: NotRequired[dict[str, Percent]]
    pseudo_precision: NotRequired[float]
    pseudo_coverage: NotRequired[float]
    seconds: NonNegative
    hardware: str
    versions: dict[str, str]
    finished: str
    metrics_digest: NotRequired[str]
    """Digest of `metrics.jsonl`; old summaries have none."""


class Estimated(TypedDict):
    """Types of the values in `estimate.json`: the accuracy on images without a label, with its 95 % interval."""

    accuracy: Percent
    low: Percent
    high: Percent


CHANGEABLE = ("runtime",)
"""Sections of the configuration that may be edited after the run was started."""


class RunFolder:
    """Paths and files of one run. Creating the object does not touch the disk.

    Example: `RunFolder(Path("runs/mine")).settings().train.steps`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.split = path / "split.json"
        self.metrics = path / "metrics.jsonl"
        self.estimate = path / "estimate.json"
        self.sessions = path / "sessions.jsonl"
        self.checkpoints = path / "checkpoints"
        self.snapshots = path / "snapshots"
        self.model = path / "model.safetensors"
        self.backbone = path / "backbone.safetensors"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"
        self.lock = path / ".lock"

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return self.config.exists()

    def snapshot(self, step: int) -> Path:
        """The file of the snapshot taken after a step."""
        return self.snapshots / f"step-{step:08d}.safetensors"

    def check_free(self) -> None:
        """Raise an `AggMatchError` if the folder holds a run."""
        if self.holds_run:
            problem = f"{self.path} already holds a run. Resume it, or choose another folder."
            raise AggMatchError(problem, options="--resume, --out")

    def check_usable(self, split: bytes) -> None:
        """Raise an `AggMatchError` if no run can start here, before the work of minutes; creates nothing."""
        check_writable(self.config)
        if self.path.exists():
            self.check_empty(split)

    def create(self, split: bytes, config: Mapping[str, Any]) -> None:
        """Start a run in a folder that is empty or does not exist yet.

        The configuration is written last: the folder holds a run once it exists. What an attempt that was killed left
        behind does not count as content.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.check_empty(split)  # before the lock is a new file in a folder of other things
            with self.locked():
                self.check_empty(split)
                write_atomically(self.split, split)
                self.write_json(self.config, sealed(config, CHANGEABLE))
        except OSError as error:
            problem = f"Cannot use {self.path} for a run: {error.strerror}. Choose another folder."
            raise AggMatchError(problem, options="--out") from error

    def check_empty(self, split: bytes) -> None:
        """Raise an `AggMatchError` if the folder holds more than what a killed attempt with this split left behind."""
        self.check_free()
        for path in self.path.iterdir():
            if path != self.lock and not is_part(path) and (path != self.split or path.read_bytes() != split):
                raise AggMatchError(f"{self.path} is not empty and holds no run. Choose another folder.")

    @contextmanager
    def discarded_on_error(self, *, new: bool) -> Iterator[None]:
        """Within, an error deletes the folder of a new run, which would be of no use and block the next attempt."""
        try:
            yield
        except Exception:
            if new:
                self.discard()
            raise

    def discard(self) -> None:
        """Delete what a run has written before its first step, and the folder if nothing else is in it."""
        with suppress(OSError):
            for path in (self.config, self.split, self.metrics, self.sessions, self.lock):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.tensorboard, ignore_errors=True)
            self.path.rmdir()

    def note_data(self, name: str, labels_file: str | None = None) -> None:
        """Record the current name of the run's data set and its table of labels, which change if the files move."""
        config = self.read_config()
        data = config.get("data", {})
        if (data.get("name"), data.get("labels_file")) != (name, labels_file):
            changed = config | {"data": {**data, "name": name, "labels_file": labels_file}}
            self.write_json(self.config, sealed(changed, CHANGEABLE))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Within, no other process can train in the folder. The lock ends with its process.

        Unfinished files that a killed process left in the folder are deleted first.
        """
        with self.lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AggMatchError(
                    f"Another process is training in {self.path}. Wait until it ends, or stop it."
                ) from None
            except OSError as error:
                raise AggMatchError(f"Cannot lock {self.lock}: {error.strerror}. Train on a local disk.") from error
            remove_parts(self.path, self.checkpoints, self.snapshots)
            yield

    def records(self) -> list[dict[str, Any]]:
        """The records of the metrics; empty before the first one."""
        return read_log(self.metrics) if self.metrics.exists() else []

    def note_session(self, session: Mapping[str, Any]) -> None:
        """Append where, when and from which step on a process trains here."""
        try:
            with self.sessions.open("a+b", buffering=0) as file:
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)  # a kill may have cut the last line short
                write_all(file.fileno(), encode_line(session))
        except OSError as error:
            raise AggMatchError(f"Cannot write {self.sessions}: {error.strerror}.") from error

    def last_session(self) -> dict[str, Any] | None:
        """The last process that trained here; None if none was recorded. Warns about lines that cannot be read."""
        session = None
        for number, line in enumerate(read_lines(self.sessions) if self.sessions.exists() else (), 1):
            try:
                session = require(decode_line(line, "it"), Session, "it")
            except AggMatchError:
                warnings.warn(f"{self.sessions}, line {number} is corrupt and left out.", stacklevel=2)
        return session

    def read_config(self, *, intact: bool = True) -> dict[str, Any]:
        """The stored configuration as nested values, not validated.

        intact: raise an `AggMatchError` if it was edited after the run was started.
        """
        config: dict[str, Any] = read_json(self.config, dict[str, Any], f"Is {self.path} the folder of a run?")
        if intact and not is_intact(config, CHANGEABLE):
            raise changed_after(self.config, "its run was started")
        return {name: value for name, value in config.items() if name != SEAL}

    def settings(self, changes: Changes = (), *, allow: Iterable[str] = ()) -> RunSettings:
        """Return the settings of the run with changes.

        Code that the folder names (`method.name=file.py:Name`) is imported only if `changes` or `allow` name it too;
        otherwise this raises an `AggMatchError`.
        """
        values, layers = self.read_config(), as_layers(changes)
        data = values.get("data")
        if isinstance(data, dict) and data.get("test_images"):  # the run's own split lists them too, and stays with it
            values["data"] = data | {"test_images": str(self.split.absolute())}
        named = [name for layer in layers for name in parts_named(layer.values)]
        refuse_code(parts_named(values), [*named, *allow], self.config)
        try:
            resolve([Layer("", values)], recipes=False)
        except AggMatchError as error:
            raise AggMatchError(f"Cannot read {self.config}: {error}") from None
        return resolve([Layer(str(self.config), values), *layers], recipes=False)

    def settings_here(self, changes: Changes = (), *, allow: Iterable[str] = ()) -> RunSettings:
        """Return the settings with a device of this machine, which need not be the machine that trained."""
        layers = [Layer("this machine", {"runtime.device": "auto"}), *as_layers(changes)]
        return self.settings(layers, allow=allow)

    def result(self) -> dict[str, Any] | None:
        """The content of `summary.json`; None before the run is finished."""
        if not self.summary.exists():
            return None
        summary: dict[str, Any] = read_json(self.summary, Summary)
        if not is_intact(summary) or (SEAL not in summary and "metrics_digest" in summary):  # they come together
            raise changed_after(self.summary, "the run was finished")
        if self.metrics.exists() and summary.get("metrics_digest") not in (None, digest(read_bytes(self.metrics))):
            raise changed_after(self.metrics, "the run was finished")
        return {name: value for name, value in summary.items() if name != SEAL}

    def write_estimate(self, values: Estimated) -> None:
        """Write `estimate.json` with a digest of itself."""
        self.write_json(self.estimate, sealed(values))

    def estimated(self) -> Estimated | None:
        """The content of `estimate.json`; None if the accuracy was not estimated."""
        if not self.estimate.exists():
            return None
        values: Estimated = read_json(self.estimate, Estimated)
        if not is_intact(values):
            raise changed_after(self.estimate, "the accuracy was estimated")
        return values

    def write_json(self, path: Path, value: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files atomically."""
        write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())


def run_name(settings: RunSettings) -> str:
    """The default name of a run's folder: `cifar10-40-aggmatch-fold0`."""
    data = settings.data
    name = Path(short_name(data.name)).name
    return f"{name}-{data.labels or 'all'}-{short_name(settings.method_name)}-fold{data.fold}"


def seeded(settings: RunSettings, out: Path, count: int) -> list[tuple[RunSettings, Path]]:
    """Return settings and folders of runs that differ in `train.seed` alone; the first pair is the given one.

    Example: the folders of `seeded(resolve({}), Path("mine"), 3)` are `mine`, `mine-seed1` and `mine-seed2`.
    """
    first = settings.train.seed
    return [
        (
            replace(settings, train=replace(settings.train, seed=seed)),
            out if seed == first else out.with_name(f"{out.name}-seed{seed}"),
        )
        for seed in range(first, first + count)
    ]


def changed_after(path: Path, event: str) -> AggMatchError:
    """Return the error for a file that is not as it was written."""
    return AggMatchError(f"{path} was changed after {event}: it does not match its digest. Restore it from a copy.")


# Lines of logs --------------------------------------------------------------------------------------------------------

CHECKSUM = "crc32"
"""The last entry of a line: a checksum of the others."""
CHECKED = re.compile(rb'"[0-9a-f]{8}"}\s*$')
"""The end of a line that has a checksum, even if its name is damaged."""


def encode_line(values: Mapping[str, Any]) -> bytes:
    """A line of a log, which ends with a checksum of its values and a newline."""
    text = json.dumps(values).encode()
    return text[:-1] + f', "{CHECKSUM}": "{crc32(text):08x}"}}\n'.encode()


def decode_line(line: bytes, where: object) -> dict[str, Any]:
    """Return the values of a line without its checksum, which older lines do not have; errors start with `where`."""
    values: dict[str, Any] = parse_json(line, Record, where)
    checksum = values.pop(CHECKSUM, None)
    covered = line[: line.rfind(f', "{CHECKSUM}"'.encode())] + b"}"
    if checksum != f"{crc32(covered):08x}" and (checksum is not None or CHECKED.search(line)):
        raise AggMatchError(f"Cannot read {where}: it is corrupt, because it does not match its checksum.")
    return values


def is_record(line: bytes) -> bool:
    """Whether a line of the metrics can be read."""
    try:
        decode_line(line, "the line")
    except AggMatchError:
        return False
    return True


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the records of a log, one per line; a last line that a kill cut short is left out."""
    return [decode_line(line, f"{path}, line {number}") for number, line in enumerate(read_lines(path), 1)]


def read_lines(path: Path) -> list[bytes]:
    """Return the lines of a log; a last line that a kill cut short is left out."""
    *lines, last = read_bytes(path).split(b"\n")  # complete lines end with a newline
    return [*lines, last] if last and is_record(last) else lines
