"""Texts are printed unchanged, on the right stream, and not at all when quiet; progress is shown all the time."""

import io
import threading
import time
from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from aggmatch import console
from aggmatch.console import RunProgress, TimeLeft, complain, follow, say

ODD = "runs/a[bold]b[/]:dog:"


@pytest.mark.parametrize("error", [False, True])
def test_a_text_is_printed_unchanged_on_the_right_stream(capsys, error):
    say(ODD, error=error)
    printed = capsys.readouterr()
    assert (printed.err if error else printed.out) == f"{ODD}\n"
    assert (printed.out if error else printed.err) == ""


@pytest.mark.parametrize("error", [False, True])
def test_control_characters_of_names_do_not_reach_the_terminal(capsys, error):
    say("a\x1b[2J\x07\x9b\u202eb\nc", error=error)
    assert "".join(capsys.readouterr()) == "a\\x1b[2J\\x07\\x9b\\u202eb\nc\n"
    complain("a\x1b[2J")
    assert capsys.readouterr().err == "a\\x1b[2J\n"


def test_a_long_line_is_not_broken(capsys, monkeypatch):
    monkeypatch.setattr(console.stdout, "width", 20)
    say("word " * 20 + "end")
    assert capsys.readouterr().out.count("\n") == 1


def test_nothing_is_printed_when_quiet(capsys):
    say("text", quiet=True)
    say("text", error=True, quiet=True)
    assert capsys.readouterr() == ("", "")


RECORDS = [
    {"step": 2, "loss": 1.0, "images_per_second": 10.0, "seconds": 1.0},
    {"step": 4, "accuracy_average": 50.0, "seconds": 3.0},
]


@pytest.fixture
def screen(monkeypatch):
    """Replaces standard output by a screen of its own, a terminal or not."""

    def replace(*, terminal: bool) -> Console:
        console_ = Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
        monkeypatch.setattr(console, "stdout", console_)
        return console_

    return replace


def text(screen: Console) -> str:
    """Everything that was printed on a screen."""
    return screen.file.getvalue()  # type: ignore[attr-defined]


def pretended(records: Iterable[dict[str, Any]], steps: int = 4, done: int = 4) -> Any:
    """A run that yields these records when it trains."""
    train = SimpleNamespace(steps=steps, evaluated="average")
    settings = SimpleNamespace(method_name="aggmatch", train=train)
    return SimpleNamespace(train=lambda: records, state=SimpleNamespace(steps_done=done), settings=settings)


@pytest.mark.parametrize("terminal", [False, True])
def test_the_progress_of_a_run_shows_its_title_unchanged(screen, terminal):
    shown = screen(terminal=terminal)
    follow(pretended(RECORDS), title=ODD)
    assert ODD in text(shown)
    assert "accuracy 50.00 %" in text(shown)


def test_a_quiet_run_still_consumes_all_records(capsys):
    records = iter(RECORDS)
    follow(pretended(records), quiet=True)
    assert next(records, None) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_and_time_left_are_shown_between_two_records(screen, monkeypatch, terminal):
    """The run takes 40 steps before its first record: a thread must show them."""
    shown = screen(terminal=terminal)
    monkeypatch.setattr(console, "TICK", 0.01)

    def train():
        deadline = time.monotonic() + 30  # a busy machine may be slow to start the thread
        while run.state.steps_done < 40 or ("about" not in text(shown) and time.monotonic() < deadline):
            run.state.steps_done = min(run.state.steps_done + 1, 40)
            time.sleep(0.01)
        assert "about" in text(shown), "before the first record"
        yield {"step": 40, "seconds": 0.4, "accuracy_average": 90.0}

    run = pretended(train(), steps=400, done=0)
    follow(run, title="run")
    assert not any(thread.name.startswith("progress") for thread in threading.enumerate())
    assert "40/400" in text(shown)


# Time left -----------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_is_unknown_before_the_first_step_and_known_after_it():
    clock = Clock()
    left = TimeLeft(0, 10, clock)
    assert left.seconds() is None
    clock.now = 40.0
    assert left.seconds() is None
    left.note(1)
    assert left.seconds() == 9 * 40


def test_between_two_steps_the_time_left_runs_down():
    clock = Clock()
    left = TimeLeft(0, 10, clock)
    clock.now = 5.0
    left.note(1)
    clock.now = 8.0
    left.note(1)
    assert left.seconds() == 9 * 5 - 3
    clock.now = 500.0
    assert left.seconds() == 0


def test_a_slow_first_step_does_not_spoil_the_estimate():
    clock = Clock()
    left = TimeLeft(0, 1000, clock)
    clock.now = 60.0
    left.note(1)
    for step in range(2, 20):
        clock.now += 1.0
        left.note(step)
    assert left.seconds() == 1000 - 19


def test_the_estimate_follows_a_change_of_pace():
    clock = Clock()
    left = TimeLeft(0, 10_000, clock)
    for step in range(1, 4001):
        clock.now += 1.0 if step <= 100 else 0.1
        left.note(step)
    assert left.seconds() == pytest.approx(6000 * 0.1, rel=0.01)


def test_a_resumed_run_counts_only_its_own_steps():
    clock = Clock()
    left = TimeLeft(500, 1000, clock)
    clock.now = 2.0
    left.note(501)
    assert left.seconds() == 499 * 2


@pytest.mark.parametrize("pace", [0.3, 7.0])
def test_without_a_terminal_no_tenth_and_no_half_minute_pass_without_a_line(pace):
    clock, printed = Clock(), [(0.0, 0)]
    state = RunProgress("run", 200, "average", clock=clock)
    while state.done < 200:
        clock.now += 1.0
        state.move(min(int(clock.now / pace), 200))
        if state.line_due():
            assert state.line().startswith(f"run  step {state.done}/200  ")
            printed.append((clock.now, state.done))
    assert printed[1][0] <= 5, "the first line comes soon"
    assert max(after - before for (before, _), (after, _) in pairwise(printed)) <= 30
    assert {10 * done // 200 for _, done in printed} == set(range(11))
