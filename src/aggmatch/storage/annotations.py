"""Labels as a log of events: one JSON object per line, so that nothing is lost and every step can be taken back.

    {"event": "class", "name": "rose"}
    {"event": "label", "files": ["a/1.jpg", "a/2.jpg"], "class": "rose"}
    {"event": "not sure", "files": ["a/3.jpg"]}
    {"event": "skip", "files": ["a/4.jpg"]}
    {"event": "clear", "files": ["a/1.jpg"]}
    {"event": "rename", "from": "rose", "to": "tulip"}
    {"event": "undo", "of": "5f0c8a4be11d"}

Later events win. `files` are paths relative to the folder of the images. Renaming a class to one that exists merges
both. An event may have an `id`, by which `undo` names it, and a `time`. An undo without `of` takes back the last event
that is still valid. The file may be edited by hand while a program has it open.
"""

import fcntl
import json
import os
import secrets
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from aggmatch.errors import AggMatchError
from aggmatch.storage.files import read_bytes, write_all

NOT_SURE, SKIPPED = "not sure", "skip"
MARKS = (NOT_SURE, SKIPPED)
"""Events that say why an image has no label."""
NAMES = {"class": ("name",), "label": ("class",), "rename": ("from", "to")}
"""Event → its fields that hold the name of a class."""
WITH_FILES = ("label", "clear", *MARKS)
LONGEST = 200
"""Characters that the name of a class may have."""

Event = Mapping[str, Any]


class Problem(NamedTuple):
    """A line of the file that cannot be used."""

    line: int
    reason: str


@dataclass
class State:
    """What all events together say: the label, or the reason for none, of each file, and the classes.

    Example: `replay([{"event": "label", "files": ["1.jpg"], "class": "rose"}]).labels` is `{"1.jpg": "rose"}`.
    """

    labels: dict[str, str] = field(default_factory=dict)
    """File → class, in the order in which the labels were given."""
    marks: dict[str, str] = field(default_factory=dict)
    """File → `not sure` or `skip`."""
    classes: dict[str, None] = field(default_factory=dict)
    """Names of the classes, in the order in which they appeared; the values mean nothing."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Name that a class had → the name that it has now. A model that was trained before still says the old one."""
    confirmed: set[str] = field(default_factory=set)
    """Files that were given the label that they had already: somebody looked twice."""

    def apply(self, event: Event) -> None:
        """Change the state by one event, which is valid and not an undo."""
        kind = event["event"]
        if kind in ("class", "label"):
            name = class_name(event[NAMES[kind][0]])
            self.classes.setdefault(name)
            self.renamed.pop(name, None)
        if kind == "rename":
            self.rename(class_name(event["from"]), class_name(event["to"]))
        for file in map(file_name, event.get("files", ())):
            before = self.labels.pop(file, None)
            self.marks.pop(file, None)
            self.confirmed.discard(file)
            if kind == "label":
                self.labels[file] = class_name(event["class"])
                if before == self.labels[file]:
                    self.confirmed.add(file)
            elif kind in MARKS:
                self.marks[file] = kind

    def rename(self, old: str, new: str) -> None:
        """Give a class another name, at its place in the order; if that exists, merge both."""
        if old in self.classes and new not in self.classes:
            self.classes = dict.fromkeys(new if name == old else name for name in self.classes)
        elif old != new:
            self.classes.pop(old, None)
        if old != new:
            self.labels = {file: new if name == old else name for file, name in self.labels.items()}
            self.renamed = {first: new if name == old else name for first, name in self.renamed.items()} | {old: new}
            self.renamed.pop(new, None)


def class_name(name: str) -> str:
    """Return the name of a class in the one form in which names are compared."""
    return unicodedata.normalize("NFC", name.strip())


def file_name(name: str) -> str:
    """Return the path of a file in the one form in which paths are compared."""
    return unicodedata.normalize("NFC", name.replace("\\", "/").removeprefix("./"))


def problem_of(event: object) -> str:
    """Return what is wrong with an event; empty if it can be used."""
    if not isinstance(event, dict):
        return "it is not a JSON object"
    kind = event.get("event")
    if kind not in (*WITH_FILES, *NAMES, "undo"):
        return f"the event {kind!r} is unknown"
    if kind in WITH_FILES:
        files = event.get("files")
        if not isinstance(files, list) or not all(isinstance(file, str) and file for file in files):
            return "`files` must be a list of paths"
    for key in NAMES.get(kind, ()):
        if why := wrong_class(event.get(key)):
            return f"`{key}` {why}"
    return ""


def wrong_class(name: object) -> str:
    """Return why a value cannot be the name of a class; empty if it can."""
    if not isinstance(name, str) or not class_name(name):
        return "must be the name of a class"
    if len(name) > LONGEST:
        return f"must have at most {LONGEST} characters, got {len(name)}"
    bad = any(unicodedata.category(character) in ("Cc", "Cs") for character in name)
    return "must not have control characters" if bad else ""


def valid_events(events: Iterable[Event]) -> list[Event]:
    """Return the events that were not taken back, in order; undos themselves are left out."""
    kept: dict[str, Event] = {}
    for number, event in enumerate(events):
        if event["event"] != "undo":
            kept[str(event.get("id", f"event {number}"))] = event
        elif "of" in event:
            kept.pop(str(event["of"]), None)
        elif kept:
            kept.popitem()
    return list(kept.values())


def replay(events: Iterable[Event]) -> State:
    """Return the state after all events.

    Example: `replay([{"event": "class", "name": "rose"}, {"event": "undo"}]).classes` is empty.
    """
    state = State()
    for event in valid_events(events):
        state.apply(event)
    return state


def parse(data: bytes) -> tuple[list[Event], list[Problem]]:
    """Return the events of a file, and a problem for each line that is not an event. Empty lines are skipped."""
    events, problems = list[Event](), list[Problem]()
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
            reason = problem_of(event)
        except (ValueError, RecursionError):
            reason = "it is not JSON"
        if reason:
            problems.append(Problem(number, reason))
        else:
            events.append(event)
    return events, problems


def encode(event: Event) -> bytes:
    """Return an event as a line of the file. Names that are not UTF-8 are escaped."""
    try:
        return json.dumps(event, ensure_ascii=False).encode() + b"\n"
    except UnicodeEncodeError:
        return json.dumps(event).encode() + b"\n"


class Annotations:
    """The events of one file, and the state that they give. Several programs may write to the file.

    path: the file; it is created with the first event.

    Example: `notes = Annotations(Path("photos/labels.jsonl"))`, then
    `notes.add({"event": "label", "files": ["1.jpg"], "class": "rose"})` and `notes.state.labels["1.jpg"]`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[Event] = []
        self.ids: set[object] = set()
        self.problems: list[Problem] = []
        self.state = State()
        self.seen: tuple[int, ...] = ()
        """By what to recognise that another program changed the file."""
        self.refresh()

    @property
    def undoable(self) -> Event | None:
        """The event that an undo would take back; None if there is none."""
        return next(iter(reversed(valid_events(self.events))), None)

    def refresh(self) -> bool:
        """Read the file again if another program changed it; return whether it did."""
        stamp = stamp_of(self.path)
        if stamp == self.seen:
            return False
        if not stamp and not self.path.parent.is_dir():  # a drive that was removed: its labels are not lost
            raise AggMatchError(f"Cannot read {self.path}: its folder is gone. Bring it back to go on.")
        self.events, self.problems = parse(read_bytes(self.path) if stamp else b"")
        self.ids = {event.get("id") for event in self.events}
        self.state, self.seen = replay(self.events), stamp
        return True

    def add(self, event: Event) -> bool:
        """Write an event to the disk, then apply it; return whether it is new.

        Events of other programs come first. An event whose id is known was written before: nothing happens. If the disk
        is full, the file stays as it was. Raises `AggMatchError` if the event is wrong or cannot be written.
        """
        if why := problem_of(event):
            raise AggMatchError(f"Not saved: {why}.")
        event = {"id": secrets.token_hex(6), **event, "time": datetime.now(UTC).isoformat(timespec="seconds")}
        try:
            with locked(self.path) as descriptor:
                self.refresh()
                if event["id"] in self.ids:
                    return False
                append(descriptor, encode(event))
                self.seen = stamp_of(self.path)
        except OSError as error:
            raise AggMatchError(f"Not saved: cannot write {self.path}: {error.strerror}.") from error
        self.events.append(event)
        self.ids.add(event["id"])
        if event["event"] == "undo":
            self.state = replay(self.events)
        else:
            self.state.apply(event)
        return True


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return numbers that change when a file changes; empty if there is none."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Within, the open file, to which no other program appends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def append(descriptor: int, line: bytes) -> None:
    """Write a line at the end of a file and flush it to the disk. If that fails, the file is as it was.

    A last line without an end, of an editor or a program that was killed, stays a line of its own.
    """
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        line = b"\n" + line
    try:
        write_all(descriptor, line)
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def label_events(labels: Mapping[str, str]) -> list[Event]:
    """Return the events, one for each class, that give files their labels. labels: file → class."""
    by_class: dict[str, list[str]] = {}
    for file, name in labels.items():
        by_class.setdefault(name, []).append(file)
    return [{"event": "label", "files": files, "class": name} for name, files in by_class.items()]
