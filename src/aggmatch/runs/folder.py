"""A run's folder: its configuration, split, metrics, checkpoints, model and summary."""

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aggmatch.config import Changes, Layer, as_layers
from aggmatch.errors import AggMatchError
from aggmatch.files import write_atomically
from aggmatch.runs.log import read_log
from aggmatch.runs.summary import Session, Summary
from aggmatch.settings import RunSettings, resolve
from aggmatch.validate import require


class RunFolder:
    """Paths and files of one run. Creating the object touches nothing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / "config.json"
        self.split = path / "split.json"
        self.metrics = path / "metrics.jsonl"
        self.sessions = path / "sessions.jsonl"
        self.checkpoints = path / "checkpoints"
        self.snapshots = path / "snapshots"
        self.model = path / "model.safetensors"
        self.summary = path / "summary.json"
        self.tensorboard = path / "tensorboard"

    @property
    def holds_run(self) -> bool:
        """Whether a run was started here."""
        return self.config.exists()

    def snapshot(self, step: int) -> Path:
        """The snapshot taken after a step."""
        return self.snapshots / f"step-{step:08d}.safetensors"

    def check_free(self) -> None:
        """Refuse to begin a second run in the folder."""
        if self.holds_run:
            raise AggMatchError(f"{self.path} holds a run already. Continue it with --resume, or choose another --out.")

    def create(self, split: bytes, config: Mapping[str, Any]) -> None:
        """Begin a run in the folder; refuse one that holds anything else.

        The configuration comes last and makes it a run. If that failed before, the same split is all there is.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            occupied = any(path != self.split or path.read_bytes() != split for path in self.path.iterdir())
        except OSError as error:
            raise AggMatchError(f"Cannot use {self.path} for a run: {error.strerror}. Choose another --out.") from error
        self.check_free()  # another process may have been quicker
        if occupied:
            raise AggMatchError(f"{self.path} is not empty and holds no run. Choose another --out.")
        write_atomically(self.split, split)
        self.write_json(self.config, config)

    def note_data(self, name: str) -> None:
        """Keep what the data set of the run is called by now."""
        config = self.read_json(self.config)
        if config["data"]["name"] != name:
            self.write_json(self.config, config | {"data": {**config["data"], "name": name}})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training in the folder; the lock dies with its process."""
        with (self.path / ".lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise AggMatchError(
                    f"Another process is training in {self.path}. Wait for its end, or stop it."
                ) from None
            except OSError as error:
                raise AggMatchError(
                    f"Cannot lock {self.path / '.lock'}: {error.strerror}. Train on a disk of this machine."
                ) from error
            yield

    def records(self) -> list[dict[str, Any]]:
        """The lines of the metrics; none where the run has not logged yet."""
        return read_log(self.metrics) if self.metrics.exists() else []

    def note_session(self, session: Mapping[str, Any]) -> None:
        """Keep where and when a process began to train here, and from which step on."""
        try:
            with self.sessions.open("a", encoding="utf-8") as file:
                file.write(json.dumps(session, ensure_ascii=False) + "\n")
        except OSError as error:
            raise AggMatchError(f"Cannot write {self.sessions}: {error.strerror}.") from error

    def last_session(self) -> dict[str, Any] | None:
        """What is known of the last process that trained here; None in folders that no line was written to."""
        sessions = read_log(self.sessions) if self.sessions.exists() else []
        return require(sessions[-1], Session, self.sessions) if sessions else None

    def settings(self, changes: Changes = ()) -> RunSettings:
        """Settings of the run, with changes."""
        values = self.read_json(self.config)
        try:
            resolve([Layer("", values)])
        except AggMatchError as error:
            raise AggMatchError(f"Cannot read {self.config}: {error}") from None
        return resolve([Layer(str(self.config), values), *as_layers(changes)])

    def settings_here(self, changes: Changes = ()) -> RunSettings:
        """Settings of the run for who looks at it, perhaps on another machine than it was trained on."""
        return self.settings([Layer("this machine", {"runtime.device": "auto"}), *as_layers(changes)])

    def result(self) -> dict[str, Any] | None:
        """The summary, whole or refused; None while the run is not finished."""
        return require(self.read_json(self.summary), Summary, self.summary) if self.summary.exists() else None

    def write_json(self, path: Path, value: Mapping[str, Any]) -> None:
        """Write one of the folder's JSON files, whole or not at all."""
        write_atomically(path, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def read_json(self, path: Path) -> dict[str, Any]:
        """Read one of the folder's JSON files."""
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise AggMatchError(f"Cannot read {path}: {error.strerror}. Is {self.path} the folder of a run?") from None
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise AggMatchError(f"Cannot read {path}: {error}.") from None
        if not isinstance(value, dict):
            raise AggMatchError(f"Cannot read {path}: it is not a JSON object.")
        return value


def run_name(settings: RunSettings) -> str:
    """What the folder of a run is called: `cifar10-40-aggmatch-fold0`."""
    data, method = settings.data, settings.method_name.replace(":", ".")
    return f"{Path(data.name).name}-{data.labels or 'all'}-{method}-fold{data.fold}"
