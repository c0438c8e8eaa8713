"""Runs that an experiment needs: which of them exist already, and what can happen to the others."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields, replace
from glob import escape
from pathlib import Path
from typing import Any, Literal, Self

from aggmatch.config import Layer, Settings
from aggmatch.errors import AggMatchError
from aggmatch.runs import checkpoint
from aggmatch.runs.folder import RunFolder, run_name
from aggmatch.runs.stored import StoredRun, read_run
from aggmatch.settings import RunSettings, resolve
from aggmatch.training.begin import start_or_resume
from aggmatch.training.earlier import resumed_settings
from aggmatch.training.run import Run

Follow = Callable[[Run, str], None]
"""Trains a run to its end; the text is a title to show."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that an experiment needs: its settings, its folder, and a title to show."""

    settings: RunSettings
    path: Path
    title: str

    @property
    def folder(self) -> RunFolder:
        """Its folder, which need not exist."""
        return RunFolder(self.path)

    @property
    def finished(self) -> bool:
        """Whether it is trained; raises an `AggMatchError` if the folder holds a run of other settings."""
        folder = self.folder
        if not folder.holds_run:
            return False
        resumed_settings(folder, [self.settings.layer("the new run")])
        return folder.summary.exists()

    @property
    def steps_done(self) -> int:
        """Steps that need not be trained again."""
        if self.finished:
            return self.settings.train.steps
        return max(map(checkpoint.step_of, checkpoint.found(self.folder.checkpoints)), default=0)

    @property
    def steps_left(self) -> int:
        """Steps that are still to be trained."""
        return self.settings.train.steps - self.steps_done

    @property
    def state(self) -> str:
        """`finished`, `at step k` or `missing`."""
        if self.finished:
            return "finished"
        return f"at step {self.steps_done:,}" if self.folder.holds_run else "missing"

    def to_dict(self) -> dict[str, Any]:
        """Return it as values that JSON can hold; they mean the same in every working directory."""
        data_dir = str(Path(self.settings.runtime.data_dir).absolute())
        settings = replace(self.settings, runtime=replace(self.settings.runtime, data_dir=data_dir))
        return {"title": self.title, "path": str(self.path.absolute()), "settings": settings.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], source: str = "the plan") -> Self:
        """Return the planned run of these values; errors in its settings name the source."""
        settings = resolve([Layer(source, values["settings"])], recipes=False)
        return cls(settings, Path(values["path"]), values["title"])

    def complete(self, follow: Follow, *, download: bool = False) -> None:
        """Train it if it is missing, resume it if it is not finished, and do nothing if it is.

        download: whether missing files of its data set are fetched.
        """
        if not self.finished:
            follow(start_or_resume(self.settings, self.path, download=download), self.title)

    def read(self) -> StoredRun:
        """What its folder holds. The folder may name the code that the plan names."""
        return read_run(self.path, allow=self.settings.parts)


@dataclass(frozen=True)
class Event:
    """Something that happened to a run."""

    run: PlannedRun
    what: Literal["started", "logged", "interrupted", "finished", "stopped", "failed"]
    """Interrupted: its machine was lost; it starts again from its newest checkpoint."""
    record: Mapping[str, Any] | None = None
    """The new line of the log, if it was logged."""
    reason: str = ""
    """Why it could not be trained to its end, if it failed."""


def collect(runs: Sequence[PlannedRun]) -> list[StoredRun]:
    """Read the runs that have been started."""
    return [run.read() for run in runs if run.folder.holds_run]


# Folders ---------------------------------------------------------------------------------------------------------


def find_folder(settings: RunSettings, out: Path) -> Path:
    """The folder in `out` that holds the run of these settings, or else the folder in which to start it.

    Version 0.1 named folders by a digest of all settings. Such a folder is found by the settings that it stores.
    """
    path = out / folder_name(settings)
    if RunFolder(path).holds_run:
        return path
    for folder in map(RunFolder, sorted(out.glob(f"{escape(run_name(settings))}-*"))):
        with suppress(AggMatchError):  # a corrupt folder, or one that this version cannot read
            allowed = settings.parts
            if folder.holds_run and folder.settings(allow=allowed).identity() == settings.identity():
                return folder.path
    return path


def folder_name(settings: RunSettings) -> str:
    """The name of the folder for the run of these settings: `cifar10-40-aggmatch-fold0-3fa9c2`.

    The last part is a digest of the settings that differ from the defaults of their fields, except section `runtime`.
    A later version that has more settings therefore gives the same name.
    """
    changed = {name: values for name, values in changed_values(settings).items() if name != "runtime"}
    digest = hashlib.blake2b(json.dumps(changed, sort_keys=True).encode(), digest_size=3)
    return f"{run_name(settings)}-{digest.hexdigest()}"


def changed_values(settings: Settings) -> dict[str, Any]:
    """Nested values of the settings that differ from the defaults of their fields."""
    changed: dict[str, Any] = {}
    for field in fields(settings):
        value = getattr(settings, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if isinstance(value, Settings):
            if nested := changed_values(value):
                changed[field.name] = nested
        elif value != default:
            changed[field.name] = value
    return changed
