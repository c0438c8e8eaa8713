"""Rounds of training: one process at a time, its progress, and what it left behind."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggmatch.errors import AggMatchError
from aggmatch.page.estimate import Estimate
from aggmatch.page.result import Doubtful, Result, Round, read_json, write_json
from aggmatch.storage.annotations import State, encode, label_events
from aggmatch.storage.files import make_folder, write_atomically

KEPT = 3
"""Rounds whose folders are kept; older ones of the page itself are removed."""
LAST_LINES = 5


@dataclass
class Job:
    """A process that prepares or trains."""

    kind: str
    folder: Round
    process: subprocess.Popen[bytes]
    labels: int
    """Labels that it learns from."""

    def close(self) -> None:
        """Wait for the end of the process."""
        self.process.wait()
        assert self.process.stdin
        self.process.stdin.close()


class Rounds:
    """Starts and follows the processes of a project.

    out: folder of the rounds; images: folder of the images. changes: layers of settings, as (source, dotted values).

    Example: `rounds.train(state, 200)`, and some seconds later `rounds.progress()` and `rounds.result`.
    """

    def __init__(self, out: Path, images: Path, changes: Sequence[tuple[str, Mapping[str, Any]]] = ()) -> None:
        self.out, self.images, self.changes = out, images, list(changes)
        self.history_file = out / "history.jsonl"
        self.suggestions = out / "suggestions.json"
        self.job: Job | None = None
        self.wanted = False
        """Whether training begins when the preparation ends."""
        self.failure = ""
        """Why the last training failed; empty if it did not."""
        self.unprepared = ""
        """The same of the last preparation."""
        self.result: Result | None = None
        self.done: Round | None = None
        """The round of the result."""
        self.version = 0
        """Grows with every new result, check or suggestion."""
        self.stamps: tuple[object, ...] = ()
        for folder in reversed(self.folders()):
            if self.load(folder):
                break
        self.stamps = self.current_stamps()

    def folders(self) -> list[Round]:
        """Return the rounds, oldest first."""
        found = self.out.glob("[0-9]*") if self.out.is_dir() else []
        return [Round(path) for path in sorted(found) if path.name.isdecimal() and path.is_dir()]

    def load(self, folder: Round) -> bool:
        """Take over the result of a round; return whether it has one."""
        result = Result.read(folder)
        if result:
            self.result, self.done = result, folder
            self.version += 1
        return result is not None

    # Processes ----------------------------------------------------------------------------------------------------

    def prepare(self, files: Sequence[str]) -> None:
        """Begin to compute features and first suggestions in the background."""
        folder = Round(make_folder(self.out / "preparation"))
        more = {"files": list(files), "images": len(files), "suggestions": str(self.suggestions)}
        self.begin("prepare", folder, 0, more)

    def train(self, state: State, images: int) -> None:
        """Begin to train on the labels so far, or note that it is wanted while a preparation computes what it needs.

        images: how many there are in all.
        """
        self.wanted = False
        if self.job and self.job.kind == "train":
            raise AggMatchError("A model is being trained already. Wait until it ends, or stop it.")
        if len(set(state.labels.values())) < 2:
            raise AggMatchError("Label images of at least two classes first.")
        if self.job:
            self.wanted = True
            return
        number = max((folder.number for folder in self.folders()), default=0) + 1
        folder = Round(make_folder(self.out / f"{number:04d}"))
        write_atomically(folder.labels, b"".join(map(encode, label_events(state.labels))))
        self.begin("train", folder, len(state.labels), {"images": images, "history": str(self.history_file)})

    def begin(self, kind: str, folder: Round, labels: int, more: Mapping[str, Any]) -> None:
        """Start a process."""
        file = folder.path / "job.json"
        job = {"kind": kind, "round": str(folder.path), "folder": str(self.images), "changes": self.changes, **more}
        write_json(file, job)
        folder.status.unlink(missing_ok=True)
        self.failure = ""
        with folder.log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "aggmatch.page.worker", str(file)],
                stdin=subprocess.PIPE,  # its end tells the process that the server is gone, however that died
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the server, which then ends the process
            )
        self.job = Job(kind, folder, process, labels)

    def stop(self) -> None:
        """End the process, if there is one, and wait for that."""
        self.wanted = False
        if self.job is None:
            return
        self.job.process.terminate()
        try:
            self.job.process.wait(10)
        except subprocess.TimeoutExpired:
            self.job.process.kill()
        self.job.close()
        self.job = None

    def follow(self) -> None:
        """Take over what the process has written, and notice its end."""
        stamps = self.current_stamps()
        if self.job and self.job.kind == "train" and self.done != self.job.folder and stamps != self.stamps:
            self.load(self.job.folder)
        if stamps != self.stamps:
            self.stamps, self.version = stamps, self.version + 1
        if self.job is None or (code := self.job.process.poll()) is None:
            return
        job, self.job = self.job, None
        job.close()
        if code and job.kind == "train":
            self.failure = f"Training failed: {failure_of(job, code)}"
        elif code:
            self.unprepared = f"Images are in random order, because computing features failed: {failure_of(job, code)}"
        elif job.kind == "train":
            self.load(job.folder)
            self.remove_old()
        self.version += 1

    def current_stamps(self) -> tuple[object, ...]:
        """Return what changes when the process has written something new."""
        folder = self.job.folder if self.job else self.done
        files = [self.suggestions, *([folder.result, folder.checked] if folder else [])]
        return tuple((file, file.stat().st_mtime_ns) for file in files if file.exists())

    def remove_old(self) -> None:
        """Remove the oldest rounds."""
        for folder in self.folders()[:-KEPT]:
            shutil.rmtree(folder.path, ignore_errors=True)

    # What is known ------------------------------------------------------------------------------------------------

    def progress(self) -> dict[str, Any] | None:
        """Return stage, done, total and time left of the running process; None if there is none."""
        if self.job is None:
            return None
        status = read_json(self.job.folder.status) or {}
        start = {"stage": "Starting", "done": 0, "total": 0, "left": ""}
        facts = {"kind": self.job.kind, "labels": self.job.labels, "wanted": self.wanted}
        return facts | start | status

    def checked(self) -> tuple[Estimate | None, list[Doubtful]]:
        """Return the estimated accuracy of the result, if there is one, and the labels that may be wrong.

        Labels that the model itself supports without having seen them are left out.
        """
        found = (read_json(self.done.checked) if self.done else None) or {}
        with suppress(TypeError, KeyError):
            estimate = found["estimate"]
            doubts = [Doubtful(*doubt) for doubt in found["doubts"]]
            return estimate and Estimate(**estimate), [doubt for doubt in doubts if doubt.score > 0]
        return None, []

    def history(self) -> list[Estimate]:
        """Return all estimates so far."""
        found = []
        with suppress(OSError):
            for line in self.history_file.read_bytes().splitlines():
                with suppress(ValueError, TypeError):  # a line that a kill cut short
                    found.append(Estimate(**json.loads(line)))
        return found

    def suggested(self) -> list[str]:
        """Return the paths of the images that teach most."""
        if self.result and self.result.order:
            return [self.result.names[position] for position in self.result.order]
        return (read_json(self.suggestions) or {}).get("names", [])


def failure_of(job: Job, code: int) -> str:
    """Return why a process failed: its own words, or the end of its output."""
    error = (read_json(job.folder.status) or {}).get("error")
    if error:
        return str(error)
    lines = job.folder.log.read_text(encoding="utf-8", errors="replace").splitlines() if job.folder.log.exists() else []
    ended = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    return f"{ended}. {' '.join(lines[-LAST_LINES:])}".strip()
