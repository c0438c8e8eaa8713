"""Progress of slow work as lines, where there is no terminal."""

import pytest

from aggmatch.progress import Lines, following, listening


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that have passed."""
    now = [0.0]
    monkeypatch.setattr("aggmatch.progress.time.monotonic", lambda: now[0])
    return now


def test_the_first_line_comes_after_seconds_and_the_next_after_half_a_minute(clock, capsys):
    lines = Lines("Computing features")
    for second in range(61):
        clock[0] = float(second)
        lines.report(second, 100)
    printed = capsys.readouterr().err.splitlines()
    assert printed == [
        "Computing features: 5 %, about 0:01:35 left",
        "Computing features: 35 %, about 0:01:05 left",
    ]


def test_quick_work_prints_nothing(clock, capsys):
    with following(None, "Reading", "images") as report:
        clock[0] = 4.0
        report(50, 100)
        clock[0] = 6.0
        report(100, 100)
    assert capsys.readouterr().err == ""


def test_a_given_callback_is_called_instead(capsys):
    seen = []
    with following(lambda done, total: seen.append((done, total)), "Reading", "images") as report:
        report(1, 2)
    assert seen == [(1, 2)]


def test_a_listener_hears_work_that_has_no_callback_of_its_own():
    heard = []
    with listening(lambda title: lambda done, total: heard.append((title, done, total))):
        with following(None, "Reading", "images") as report:
            report(1, 2)
        with following(lambda done, total: None, "Other", "images") as report:
            report(1, 2)
    assert heard == [("Reading", 1, 2)]
