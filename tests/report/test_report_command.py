"""The command `report`."""

import pytest
from tests.folders import line, write_folder

from aggmatch.report import page as report


def test_the_page_is_written_to_out(run, tmp_path, fakes):
    write_folder(tmp_path / "a", [line(20)])
    code, out, err = run("report", "a", "--out", "deep/er/page.html")
    assert (code, out) == (0, "Report: deep/er/page.html\n")
    assert err.startswith("What happened during training, 1 of 5 ...")
    assert "The run is not finished" in (tmp_path / "deep/er/page.html").read_text()


def test_quiet_prints_nothing(run, tmp_path, fakes):
    write_folder(tmp_path / "a", [line(20)])
    assert run("report", "a", "--quiet") == (0, "", "")
    assert (tmp_path / "a/report.html").exists()


def test_the_page_on_one_run_is_in_its_folder_and_that_on_several_is_not(run, tmp_path, fakes):
    for name in ("a", "b"):
        write_folder(tmp_path / name, [line(20)])
    assert run("report", "a")[1] == "Report: a/report.html\n"
    assert run("report", "a", "b")[1] == "Report: report.html\n"


def test_an_interrupted_watch_is_no_failure(run, tmp_path, fakes, monkeypatch):
    write_folder(tmp_path / "a", [line(20)])
    monkeypatch.setattr(report, "page", interrupted_once(report.page))
    code, out, err = run("report", "a", "--watch")
    assert (code, out) == (0, "Report: a/report.html\n")
    assert err == "Watching; open a/report.html in a browser. Ctrl-C stops.\n"


@pytest.mark.parametrize("words", [[], ["--watch"]])
def test_files_of_the_data_are_downloaded_only_on_request_with_and_without_watch(run, tmp_path, monkeypatch, words):
    write_folder(tmp_path / "a", [line(20)], summary={})
    asked = []

    def page(records, **_):
        asked.append([record.download for record in records])
        return ""

    monkeypatch.setattr(report, "page", page)
    assert run("report", "a", *words, "--download")[0] == 0
    assert run("report", "a", *words)[0] == 0
    assert asked == [[True], [False]]


def interrupted_once(whole):
    """Stands in for `page` and is interrupted the first time."""
    calls = []

    def page(runs, **options):
        calls.append(runs)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return whole(runs, **options)

    return page


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere"], "nowhere"),
        (["a", "nowhere"], "nowhere"),
        (["a", "--out", "a"], "--out a/report.html"),
        (["a", "--out", "file/report.html"], "file"),
        (["a", "--out", 250 * "x"], "xxx"),  # before any work is done
        (["a", "--device", "quantum"], "runtime.device"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exit_code_two(run, tmp_path, words, named):
    write_folder(tmp_path / "a", [line(20)])
    (tmp_path / "file").write_text("not a folder")
    code, out, err = run("report", *words)
    assert (code, out) == (2, "")
    assert named in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


METHOD = """
from aggmatch import Method
from aggmatch.config import Settings

class Mine(Method[Settings]):
    pass
"""


@pytest.mark.parametrize("words", [[], ["--watch"]])
def test_code_that_a_run_names_runs_only_if_it_is_allowed(run, tmp_path, fakes, words):
    (tmp_path / "mine.py").write_text(METHOD)
    write_folder(tmp_path / "a", [line(20)], {}, method=f"{tmp_path / 'mine.py'}:Mine")
    (tmp_path / "mine.py").write_text("raise SystemExit(99)")
    code, _, err = run("report", "a", *words)
    assert code == 2
    assert f"--allow-code {tmp_path / 'mine.py'}:Mine" in err
    (tmp_path / "mine.py").write_text(METHOD)
    assert run("report", "a", *words, "--allow-code", "mine.py:Mine")[0] == 0
    assert "mine.Mine on digits" in (tmp_path / "a/report.html").read_text()
