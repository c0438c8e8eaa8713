"""What a person sees of runs that train in other processes."""

import io
import time

import pytest
from rich.console import Console

from aggmatch import console
from aggmatch.experiments import progress
from aggmatch.experiments.planned import Event


@pytest.fixture
def events(plan):
    """Two runs: one finishes, the other fails."""
    good, bad = plan().runs[:2]
    logged = {"step": 2, "seconds": 1.0, "loss": 0.5, "images_per_second": 100.0}
    evaluated = {"step": 4, "seconds": 2.0, "accuracy_average": 61.0, "accuracy_online": 60.0}
    return [
        Event(good, "started"),
        Event(bad, "started"),
        Event(good, "logged", logged),
        Event(good, "logged", evaluated),
        Event(bad, "failed", reason="no memory"),
        Event(good, "finished"),
    ]


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("quiet", [True, False])
def test_failures_are_passed_on(events, monkeypatch, terminal, quiet):
    monkeypatch.setattr(progress, "stdout", Console(file=io.StringIO(), force_terminal=terminal))
    assert list(progress.show_progress(events, quiet=quiet)) == [events[4]]


def test_without_a_terminal_starts_evaluations_and_ends_are_lines(events, capsys):
    assert list(progress.show_progress(events, quiet=False)) == [events[4]]
    good, bad = (event.run.title for event in events[:2])
    assert capsys.readouterr().out.splitlines() == [
        f"{good}  started",
        f"{bad}  started",
        f"{good}  step 2/4  100 img/s  loss 0.500  0 s  about 0 s left",
        f"{good}  step 4/4  100 img/s  loss 0.500  accuracy 61.00 %  0 s",
        f"{good}  finished",
    ]


def test_without_a_terminal_a_line_with_the_time_left_appears_between_two_records(events, monkeypatch, capsys):
    monkeypatch.setattr(console, "TICK", 0.01)
    monkeypatch.setattr(console, "SILENCE", 0.05)
    monkeypatch.setattr(console, "FIRST_LINE", 0.05)

    def slowly():
        yield from events[:3]
        time.sleep(0.3)

    assert list(progress.show_progress(slowly(), quiet=False)) == []
    title = events[2].run.title
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{title}  step 2/4")]
    assert len(lines) > 2
    assert all("left" in line for line in lines)


def test_on_a_terminal_every_run_has_a_bar_and_then_a_line(events, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=160)
    monkeypatch.setattr(progress, "stdout", screen)
    shown = progress.show_progress(events[:4], quiet=False)
    assert list(shown) == []
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "4/4" in text
    assert "loss 0.500  accuracy 61.00 %" in text
    list(progress.show_progress(events, quiet=False))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert f"{events[0].run.title}  finished  100 img/s  loss 0.500  accuracy 61.00 %" in text
    assert f"{events[1].run.title}  failed" in text


def test_a_run_that_is_interrupted_gets_a_new_bar_and_one_that_never_started_needs_none(events, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=160)
    monkeypatch.setattr(progress, "stdout", screen)
    start, _, logged, *_ = events
    failure = Event(events[1].run, "failed", reason="its folder is not empty")
    again = [failure, start, logged, Event(start.run, "interrupted"), start, Event(start.run, "finished")]
    assert list(progress.show_progress(again, quiet=False)) == [failure]
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert f"{start.run.title}  interrupted  100 img/s" in text
    assert f"{start.run.title}  finished" in text
