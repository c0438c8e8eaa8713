"""What the label page knows about a folder: its images, their labels and the rounds of training."""

import secrets
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aggmatch.data.own.decode import printable
from aggmatch.data.own.folder import EVENTS, TABLE, folders_of_classes, list_labeled, training_root
from aggmatch.data.own.labels_file import labels_of, read_labels
from aggmatch.errors import AggMatchError
from aggmatch.page.estimate import advice
from aggmatch.page.index import Index, Thumbnails, image_id
from aggmatch.page.lists import Lists
from aggmatch.page.rounds import Rounds
from aggmatch.storage.annotations import NOT_SURE, SKIPPED, Annotations, Event, class_name, label_events
from aggmatch.storage.files import cache_folder, check_writable, make_folder
from aggmatch.tables import plural

JOURNAL = 500
"""Changes that another tab can catch up with; older tabs read everything again."""
KEYS = "123456789bdefhijklmopqrtyz"
"""Keys of the classes; the other letters are commands."""


class ConflictError(AggMatchError):
    """Another tab or program has changed what a request refers to."""


class Project:
    """Images of a folder, their labels and the rounds of training. All methods may be called by several threads.

    root: folder of the images. out: folder of the rounds. labels_file: the log of labels, by default beside the images.
    cache_dir: see `files.cache_folder`. changes: settings for training, as (source, dotted values).

    Example: `project = Project(Path("photos"), Path("runs/label-photos"))`, then `project.state()["counts"]`.
    """

    def __init__(
        self,
        root: Path,
        out: Path,
        *,
        labels_file: Path | None = None,
        cache_dir: str | None = None,
        changes: Sequence[tuple[str, Mapping[str, Any]]] = (),
        train_every: int = 0,
    ) -> None:
        self.root, self.out = root.resolve(), out.resolve()
        if not self.root.is_dir():
            raise AggMatchError(f"There is no folder {printable(root)}.")
        self.index = Index(self.root)
        if not self.index.names:
            raise AggMatchError(f"There are no images in {printable(root)}.")
        path = labels_file or self.root / EVENTS
        try:
            make_folder(path.parent)
            check_writable(path)
        except AggMatchError as error:
            raise AggMatchError(f"Labels cannot be saved. {error}", options="--labels-file") from None
        self.notes = Annotations(path)
        self.rounds = Rounds(self.out, self.root, changes)
        self.thumbnails = Thumbnails(cache_folder(cache_dir) / "thumbnails", self.root)
        self.train_every = train_every
        self.trained_at = self.rounds.result.labeled if self.rounds.result else 0
        self.lock = threading.RLock()
        self.lists = Lists(self.index, self.notes, self.rounds, self.lock)
        self.session = secrets.token_hex(3)
        self.version = 0
        self.before = self.flat()
        self.offered: tuple[float, str] = (0.0, "")
        self.journal: deque[tuple[int, set[str]]] = deque(maxlen=JOURNAL)

    # Changes ------------------------------------------------------------------------------------------------------

    def flat(self) -> dict[str, str]:
        """Return file → label or mark, as one dictionary that can be compared."""
        state = self.notes.state
        return state.labels | {file: f"\0{mark}" for file, mark in state.marks.items()}

    def note_changes(self) -> None:
        """Record which images changed since the last call."""
        now = self.flat()
        changed = {file for file, _ in now.items() ^ self.before.items()}
        self.before, self.version = now, self.version + 1
        self.journal.append((self.version, {image_id(file) for file in changed}))

    def refresh(self) -> None:
        """Notice what other programs and processes have changed."""
        if self.notes.refresh():
            self.note_changes()
        self.rounds.follow()
        if self.train_due():
            try:
                self.train()
            except AggMatchError as error:  # a disk that is full: the page works without a model
                self.rounds.failure = str(error)

    def add(self, request: Mapping[str, Any]) -> None:
        """Save what a user did.

        request: an event in which `ids` stand for `files`. Raises `ConflictError` if a class or an image is gone, and
        `AggMatchError` if it cannot be saved.
        """
        with self.lock:
            self.notes.refresh()
            event = {key: request[key] for key in ("id", "event", "class", "name", "from", "to") if key in request}
            if "ids" in request:
                event["files"] = self.files_of(request["ids"])
            for key in ("class", "from"):
                if key in event and class_name(str(event[key])) not in self.notes.state.classes:
                    raise ConflictError(
                        f"There is no class '{event[key]}' any more. It was renamed or merged meanwhile."
                    )
            self.write(event)

    def files_of(self, ids: object) -> list[str]:
        """Return the files of ids; raise `ConflictError` if there is no such image."""
        if not isinstance(ids, list) or not all(isinstance(key, str) for key in ids):
            raise AggMatchError("Not saved: `ids` must be a list of ids.")
        try:
            return [self.index.names[key] for key in ids]
        except KeyError:
            raise ConflictError("An image is gone: its file was moved or deleted meanwhile.") from None

    def undo(self, request: Mapping[str, Any]) -> str:
        """Take back the last event; return it in words. Raises `ConflictError` if the user has not seen it yet.

        request: `id` of the undo itself, and `version` that the user sees.
        """
        with self.lock:
            if self.notes.refresh():
                self.note_changes()
            if request.get("id") in self.notes.ids:
                return ""
            if request.get("version") != self.stamp:
                raise ConflictError(
                    "Something was labelled elsewhere meanwhile. Look at it, and undo again to take it back."
                )
            last = self.notes.undoable
            if last is None:
                raise AggMatchError("There is nothing to undo.")
            event: dict[str, Any] = {"event": "undo", "id": str(request.get("id") or secrets.token_hex(6))}
            self.write(event | ({"of": last["id"]} if "id" in last else {}))
            return describe(last)

    def write(self, event: Event) -> None:
        """Write an event to the disk."""
        self.notes.add(event)
        self.note_changes()

    def importable(self) -> str:
        """Return what labels can be taken over from: a table or folders of classes; empty if there is nothing."""
        if self.notes.events:
            return ""
        if self.offered[0] != self.index.scanned:  # looking through a large folder takes a while
            names = folders_of_classes(self.root, training_root(self.root))
            folders = f"{len(names)} folders" if len(names) > 1 else ""
            self.offered = self.index.scanned, TABLE if (self.root / TABLE).is_file() else folders
        return self.offered[1]

    def import_labels(self) -> None:
        """Take over the labels of a table or of folders of classes."""
        with self.lock:
            found: dict[Path, str] = {}
            if self.importable() == TABLE:
                table = self.root / TABLE
                files = [self.root / name for name in self.index.names.values()]
                found = labels_of(read_labels(table), files, self.root, table)
            elif self.importable():
                names = folders_of_classes(self.root, training_root(self.root))
                found = {file: names[number] for file, number in list_labeled(training_root(self.root), names)}
            for event in label_events({file.relative_to(self.root).as_posix(): name for file, name in found.items()}):
                self.write(event)

    # Training -----------------------------------------------------------------------------------------------------

    def train_due(self) -> bool:
        """Whether training starts now: it was waiting for the preparation, or there are enough new labels."""
        if self.rounds.job:
            return False
        if self.rounds.wanted:
            return True
        labels = self.notes.state.labels
        new = len(labels) - self.trained_at
        enough = self.train_every and new >= self.train_every and len(set(labels.values())) > 1
        return bool(enough) and not self.rounds.failure

    def train(self) -> None:
        """Begin to train, at once or after the preparation."""
        with self.lock:
            self.notes.refresh()
            self.rounds.train(self.notes.state, len(self.index.names))
            self.trained_at = len(self.notes.state.labels)

    # What the page shows ------------------------------------------------------------------------------------------

    @property
    def stamp(self) -> str:
        """The version of the labels; it differs from that of another start of the server."""
        return f"{self.session}-{self.version}"

    def changes_since(self, stamp: str | None) -> dict[str, list[str | None]] | None:
        """Return id → [label, mark] of images that changed since a version; None if that is unknown."""
        session, _, number = (stamp or "").partition("-")
        if session != self.session or not number.isdecimal():
            return None
        if int(number) < self.version - len(self.journal):
            return None
        keys = set[str]().union(*(keys for version, keys in self.journal if version > int(number)))
        return {key: self.lists.marked(key) for key in keys if key in self.index.names}

    def state(self, since: str | None = None) -> dict[str, Any]:
        """Return everything that the page shows besides images, and the images that changed since a version."""
        with self.lock:
            self.refresh()
            state, present = self.notes.state, self.index.keys
            marks = Counter(mark for file, mark in state.marks.items() if file in present)
            labeled = sum(file in present for file in state.labels)
            counted = Counter(state.labels.values())
            keys = dict(zip(state.classes, KEYS, strict=False))
            last = self.notes.undoable
            return {
                "version": self.stamp,
                "changes": self.changes_since(since),
                "classes": [
                    {"name": name, "count": counted[name], "key": keys.get(name, "")} for name in state.classes
                ],
                "counts": {
                    "images": len(present),
                    "labeled": labeled,
                    "unsure": marks[NOT_SURE],
                    "skipped": marks[SKIPPED],
                    "left": len(present) - labeled - sum(marks.values()),
                },
                "undo": describe(last) if last else "",
                "problems": self.problems(len(state.labels) - labeled),
                "importable": self.importable(),
                "training": self.training(),
            }

    def training(self) -> dict[str, Any]:
        """Return progress, estimate and history of training."""
        estimate, _ = self.rounds.checked()
        result, history = self.rounds.result, self.rounds.history()
        return {
            "version": self.rounds.version,
            "progress": self.rounds.progress(),
            "failure": self.rounds.failure,
            "every": self.train_every,
            "trained": bool(result),
            "labeled": result.labeled if result else 0,
            "classes": list(dict.fromkeys(self.lists.model_classes())),
            "explains": bool(result and result.why),
            "estimate": estimate and estimate._asdict(),
            "doubts": len(self.lists.doubted()),
            "history": [each._asdict() for each in history],
            "advice": advice(estimate),
        }

    def problems(self, missing: int) -> list[str]:
        """Return sentences on what is wrong with the files."""
        found = [f"{self.notes.path.name}, line {line}: {reason}." for line, reason in self.notes.problems]
        found += [*self.index.warnings, *filter(None, [self.rounds.unprepared])]
        if missing:
            found.append(f"{plural(missing, 'label')} of files that are not in the folder any more; they are kept.")
        if self.index.unreadable:
            name, why = next(iter(self.index.unreadable.items()))
            shown = printable(self.index.names.get(name, name))
            found.append(f"{plural(len(self.index.unreadable), 'file')} cannot be read, such as {shown}: {why}.")
        return found


def describe(event: Event) -> str:
    """Return an event in words, for the undo button."""
    if event["event"] == "rename":
        return f"rename {event['from']} to {event['to']}"
    if event["event"] == "class":
        return f"new class {event['name']}"
    return f"{event.get('class', event['event'])}: {plural(len(event['files']), 'image')}"
