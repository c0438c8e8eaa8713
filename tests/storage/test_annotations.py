"""The log of labels: replay, undo, other programs, bad disks."""

import errno
import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggmatch.errors import AggMatchError
from aggmatch.storage.annotations import Annotations, Event, State, encode, parse, replay, valid_events

NAMES = st.sampled_from(["rose", "tulip", "<img src=x onerror=alert(1)>", "Gänseblümchen"])
MARKS = st.sampled_from(["skip", "not sure", "clear"])
FILES = st.lists(st.sampled_from(["1.jpg", "a/2.jpg", "b/ä.png", "odd\udcff.jpg"]), min_size=1, unique=True)
ACTIONS = st.one_of(
    st.builds(lambda files, name: {"event": "label", "files": files, "class": name}, FILES, NAMES),
    st.builds(lambda kind, files: {"event": kind, "files": files}, MARKS, FILES),
    st.builds(lambda name: {"event": "class", "name": name}, NAMES),
    st.builds(lambda old, new: {"event": "rename", "from": old, "to": new}, NAMES, NAMES),
)


def label(file: str, name: str) -> Event:
    return {"event": "label", "files": [file], "class": name}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "labels.jsonl"


@given(st.lists(ACTIONS, max_size=12), st.integers(0, 12))
def test_undos_give_the_state_before_the_last_events(actions, undos):
    undos = min(undos, len(actions))
    assert replay([*actions, *[{"event": "undo"}] * undos]) == replay(actions[: len(actions) - undos])


@given(st.lists(ACTIONS, min_size=1, max_size=8), st.data())
def test_an_undo_by_id_takes_back_that_event_alone(actions, data):
    numbered = [action | {"id": str(number)} for number, action in enumerate(actions)]
    chosen = data.draw(st.integers(0, len(actions) - 1))
    left = [action for number, action in enumerate(actions) if number != chosen]
    assert replay([*numbered, {"event": "undo", "of": str(chosen)}]) == replay(left)


@given(st.lists(ACTIONS, max_size=12))
def test_a_file_has_a_label_or_a_mark_and_every_label_is_a_class(actions):
    state = replay(actions)
    assert not state.labels.keys() & state.marks.keys()
    assert set(state.labels.values()) <= state.classes.keys()


@given(st.lists(ACTIONS, max_size=8))
def test_events_survive_the_file(actions):
    assert parse(b"".join(map(encode, actions))) == (actions, [])


@settings(max_examples=30)
@given(st.lists(ACTIONS | st.just({"event": "undo"}), max_size=8))
def test_a_restart_gives_the_same_state(tmp_path_factory, actions):
    path = tmp_path_factory.mktemp("log") / "labels.jsonl"
    notes = Annotations(path)
    for action in actions:
        notes.add(action)
    again = Annotations(path)
    assert again.state == notes.state == replay(actions)
    assert again.undoable == notes.undoable


def test_the_names_that_a_class_had_are_known_until_another_class_has_them():
    renames = [{"event": "rename", "from": old, "to": new} for old, new in (("rose", "tulip"), ("tulip", "lily"))]
    assert replay([label("1", "rose"), *renames]).renamed == {"rose": "lily", "tulip": "lily"}
    assert replay([label("1", "rose"), *renames, label("2", "tulip")]).renamed == {"rose": "lily"}
    back = {"event": "rename", "from": "lily", "to": "rose"}
    assert replay([label("1", "rose"), *renames, back]).renamed == {"tulip": "rose", "lily": "rose"}


def test_a_renamed_class_keeps_its_place_and_its_labels():
    state = replay([label("1", "rose"), label("2", "tulip"), {"event": "rename", "from": "rose", "to": "Rose"}])
    assert list(state.classes) == ["Rose", "tulip"]
    assert state.labels == {"1": "Rose", "2": "tulip"}


def test_renaming_to_a_known_class_merges_both_and_can_be_taken_back():
    events = [label("1", "rose"), label("2", "tulip"), {"event": "rename", "from": "rose", "to": "tulip"}]
    assert replay(events) == State({"1": "tulip", "2": "tulip"}, {}, {"tulip": None}, {"rose": "tulip"})
    assert replay([*events, {"event": "undo"}]) == replay(events[:2])


def test_names_in_other_unicode_forms_are_the_same():
    state = replay([label("./a\\u\u0308.jpg", "Ro\u0308schen"), label("a/ü.jpg", "Röschen")])
    assert state.labels == {"a/ü.jpg": "Röschen"}


def test_a_torn_last_line_is_left_out_and_the_next_event_is_not_damaged(path: Path):
    notes = Annotations(path)
    notes.add(label("1.jpg", "rose"))
    with path.open("ab") as file:
        file.write(b'{"event": "label", "files": ["2.j')
    notes.add(label("3.jpg", "rose"))
    again = Annotations(path)
    assert again.state.labels == notes.state.labels == {"1.jpg": "rose", "3.jpg": "rose"}
    assert [problem.line for problem in again.problems] == [2]


def test_a_line_by_hand_without_an_end_counts(path: Path):
    path.write_text('\n{"event": "label", "files": ["1.jpg"], "class": "rose"}')
    notes = Annotations(path)
    notes.add(label("2.jpg", "rose"))
    assert Annotations(path).state.labels == {"1.jpg": "rose", "2.jpg": "rose"}
    assert Annotations(path).problems == []


def test_events_of_another_program_are_merged(path: Path):
    one, other = Annotations(path), Annotations(path)
    one.add(label("1.jpg", "rose"))
    other.add(label("2.jpg", "tulip"))
    assert one.refresh()
    assert not one.refresh()
    assert one.state == other.state == replay([label("1.jpg", "rose"), label("2.jpg", "tulip")])


def test_a_file_that_was_edited_by_hand_is_read_again(path: Path):
    notes = Annotations(path)
    notes.add(label("1.jpg", "rose"))
    path.write_text(path.read_text().replace("rose", "tulip"))
    assert notes.refresh()
    assert notes.state.labels == {"1.jpg": "tulip"}


def test_the_same_event_is_written_once(path: Path):
    notes = Annotations(path)
    assert notes.add({**label("1.jpg", "rose"), "id": "a"})
    assert not notes.add({**label("1.jpg", "tulip"), "id": "a"})
    assert len(path.read_text().splitlines()) == 1


def test_a_full_disk_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    notes = Annotations(path)
    notes.add(label("1.jpg", "rose"))
    before, write = path.read_bytes(), os.write

    def write_some(descriptor: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:20])

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", write_some)
        with pytest.raises(AggMatchError, match="Not saved.*No space left"):
            notes.add(label("2.jpg", "rose"))
    assert path.read_bytes() == before
    assert notes.state.labels == {"1.jpg": "rose"}
    assert notes.add(label("2.jpg", "rose"))


@pytest.mark.parametrize(
    "event",
    [
        [],
        {"event": "paint"},
        {"event": "label", "files": "1.jpg", "class": "rose"},
        {"event": "label", "files": ["1.jpg"], "class": " "},
        {"event": "class", "name": "two\nlines"},
        {"event": "class", "name": "x" * 300},
        {"event": "rename", "from": "rose"},
    ],
    ids=str,
)
def test_a_wrong_event_is_not_written(path: Path, event):
    with pytest.raises(AggMatchError, match="Not saved"):
        Annotations(path).add(event)
    assert not path.exists()
    assert parse(json.dumps(event).encode())[1]


def test_valid_events_leave_out_undone_ones():
    assert valid_events([label("1", "a"), {"event": "undo"}, label("2", "a")]) == [label("2", "a")]
