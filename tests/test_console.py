"""Texts are printed unchanged, on the right stream, and not at all when quiet."""

import io

import pytest
from rich.console import Console

from aggmatch import console
from aggmatch.console import complain, follow, say

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


@pytest.mark.parametrize("terminal", [False, True])
def test_the_progress_of_a_run_shows_its_title_unchanged(monkeypatch, terminal):
    screen = Console(file=io.StringIO(), force_terminal=terminal, width=200, color_system=None)
    monkeypatch.setattr(console, "stdout", screen)
    follow(RECORDS, title=ODD, done=0, steps=4, network="average", quiet=False)
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    assert ODD in shown
    assert "accuracy 50.00 %" in shown


def test_a_quiet_run_still_consumes_all_records(capsys):
    records = iter(RECORDS)
    follow(records, title="t", done=0, steps=4, network="average", quiet=True)
    assert next(records, None) is None
    assert capsys.readouterr() == ("", "")
