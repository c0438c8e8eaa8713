"""What the label page knows about a folder: images, labels, rounds of training, and the lists that it shows."""

import secrets
import threading
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from aggmatch.data.own.decode import printable
from aggmatch.data.own.folder import EVENTS, TABLE, folders_of_classes, list_labeled, training_root
from aggmatch.data.own.labels_file import labels_of, read_labels
from aggmatch.errors import AggMatchError
from aggmatch.page.estimate import advice
from aggmatch.page.index import Index, Thumbnails, image_id
from aggmatch.page.rounds import Rounds
from aggmatch.storage.annotations import NOT_SURE, SKIPPED, Annotations, Event, class_name, file_name, label_event
from aggmatch.storage.files import cache_folder, check_writable, make_folder
from aggmatch.tables import plural

CONFIDENT = 200
"""Images of a class that the list of confident predictions shows at a time."""
DOUBTFUL = 500
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
        self.session = secrets.token_hex(3)
        self.version = 0
        self.before = self.flat()
        self.offered: tuple[float, str] = (0.0, "")
        self.guessed: tuple[object, dict[str, tuple[str, float, float]]] = (None, {})
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
            return self.index.files(ids)
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
            by_class: dict[str, list[str]] = {}
            if self.importable() == TABLE:
                table = self.root / TABLE
                files = [self.root / name for name in self.index.names.values()]
                for file, name in labels_of(read_labels(table), files, self.root, table).items():
                    by_class.setdefault(name, []).append(file.relative_to(self.root).as_posix())
            elif self.importable():
                names = folders_of_classes(self.root, training_root(self.root))
                for file, number in list_labeled(training_root(self.root), names):
                    by_class.setdefault(names[number], []).append(file.relative_to(self.root).as_posix())
            for name, members in by_class.items():
                self.write(label_event(members, name))

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
        return {key: self.marked(key) for key in keys if key in self.index.names}

    def marked(self, key: str) -> list[str | None]:
        """Return label and mark of an image."""
        file, state = file_name(self.index.names[key]), self.notes.state
        return [state.labels.get(file), state.marks.get(file)]

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
            "new": len(self.notes.state.labels) - self.trained_at,
            "trained": bool(result),
            "labeled": result.labeled if result else 0,
            "classes": list(dict.fromkeys(self.model_classes())),
            "explains": bool(result and result.why),
            "estimate": estimate and estimate._asdict(),
            "doubts": len(self.doubted()),
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

    # Lists of images ----------------------------------------------------------------------------------------------

    def named(self, name: str) -> str:
        """Return the name that a class of the model has now."""
        return self.notes.state.renamed.get(name, name)

    def model_classes(self) -> list[str]:
        """Return the names that the classes of the model have now; two are the same if they were merged."""
        return [self.named(name) for name in self.rounds.result.classes] if self.rounds.result else []

    def guesses(self) -> dict[str, tuple[str, float, float]]:
        """Return id → predicted class, its probability and the consensus, for all images of the last result."""
        result = self.rounds.result
        if result is None:
            return {}
        classes, shown = self.model_classes(), self.index.shown
        if self.guessed[0] == (result, classes, shown):
            return self.guessed[1]
        best = result.probs.argmax(1)
        rows = zip(result.names, best.tolist(), result.probs.max(1).tolist(), result.consensus.tolist(), strict=True)
        found = {
            shown[name]: (classes[number], round(prob, 4), round(agreed, 4))
            for name, number, prob, agreed in rows
            if name in shown
        }
        self.guessed = (result, classes, shown), found
        return found

    def list_images(self, name: str, of_class: str = "") -> list[list[Any]]:
        """Return the images of a list: id, label, mark, guess, its probability, and the consensus of each.

        name: `queue` (what to label next), `all`, `labeled`, `unsure`, `skipped`, `doubtful`, `wrong` or `confident`;
        the last one shows one class.
        """
        with self.lock:
            guesses = self.guesses()
            if name == "wrong":
                guesses = guesses | self.suggestions()
            return [[key, *self.marked(key), *guesses.get(key, (None, 0, 0))] for key in self.keys_of(name, of_class)]

    def keys_of(self, name: str, of_class: str) -> list[str]:
        """Return the ids of a list in its order."""
        state = self.notes.state
        if name == "all":
            return list(self.index.names)
        if name == "labeled":
            files = [file for file, label in reversed(state.labels.items()) if of_class in ("", label)]
            return self.present(files)
        if name in ("unsure", "skipped"):
            wanted = NOT_SURE if name == "unsure" else SKIPPED
            return self.present(file for file, mark in state.marks.items() if mark == wanted)
        taken = {*self.present(state.labels), *self.present(state.marks), *self.index.unreadable}
        if name == "queue":
            return [key for key in self.ordered() if key not in taken]
        if name == "wrong":
            return self.doubted()
        if name not in ("doubtful", "confident"):
            raise AggMatchError(f"There is no list '{name}'.")
        free = [(key, guess) for key, guess in self.guesses().items() if key not in taken]
        if name == "doubtful":
            free.sort(key=lambda pair: (pair[1][2], pair[1][1]))
            return [key for key, _ in free[:DOUBTFUL]]
        free = [(key, guess) for key, guess in free if guess[0] == of_class]
        free.sort(key=lambda pair: (-pair[1][2], -pair[1][1]))
        return [key for key, _ in free[:CONFIDENT]]

    def present(self, files: Iterable[str]) -> list[str]:
        """Return the ids of the files that are in the folder."""
        return [self.index.keys[file] for file in files if file in self.index.keys]

    def ordered(self) -> Iterable[str]:
        """Yield all ids: suggested images first, the others in an order that mixes folders and is always the same."""
        shown = self.index.shown
        first = dict.fromkeys(shown[name] for name in self.rounds.suggested() if name in shown)
        yield from first
        yield from sorted(key for key in self.index.names if key not in first)  # ids are hashes

    def doubted(self) -> list[str]:
        """Return the ids of labels that may be wrong, and that nobody has changed or confirmed since."""
        doubts = self.rounds.checked()[1]
        found = [(self.index.shown.get(doubt.name), self.named(doubt.given)) for doubt in doubts]
        confirmed = set(self.present(self.notes.state.confirmed))
        return [key for key, given in found if key and key not in confirmed and self.marked(key)[0] == given]

    def suggestions(self) -> dict[str, tuple[str, float, float]]:
        """Return id → what doubted labels should be, in the form of `guesses`."""
        shown = self.index.shown
        found = [doubt for doubt in self.rounds.checked()[1] if doubt.name in shown]
        return {shown[doubt.name]: (self.named(doubt.suggested), doubt.score, 0.0) for doubt in found}

    def predictions(self) -> dict[str, tuple[str, float]]:
        """Return file → class and probability; given labels have 1."""
        with self.lock:
            guesses, state, found = self.guesses(), self.notes.state, {}
            for key, name in self.index.names.items():
                if label := state.labels.get(file_name(name)):
                    found[name] = label, 1.0
                elif key in guesses:
                    found[name] = guesses[key][0], guesses[key][1]
            return found

    def labels(self) -> dict[str, str]:
        """Return file → given label of the images that are there."""
        with self.lock:
            state = self.notes.state
            pairs = ((name, state.labels.get(file_name(name))) for name in self.index.names.values())
            return {name: label for name, label in pairs if label}


def describe(event: Event) -> str:
    """Return an event in words, for the undo button."""
    if event["event"] == "rename":
        return f"rename {event['from']} to {event['to']}"
    if event["event"] == "class":
        return f"new class {event['name']}"
    return f"{event.get('class', event['event'])}: {plural(len(event['files']), 'image')}"
