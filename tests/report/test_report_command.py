"""The command `report`, and the report that ends the demo."""

import re

import pytest
from tests.folders import line, write_folder

from aggmatch.experiments import demo
from aggmatch.report import page as report
from aggmatch.report import watch
from aggmatch.tables import Table


def test_the_page_is_written_where_it_is_wanted(run, tmp_path):
    write_folder(tmp_path / "a", [line(20)])
    code, out, err = run("report", "a", "--out", "deep/er/page.html")
    assert (code, out) == (0, "Report: deep/er/page.html\n")
    assert "curves, 1 of 6 ..." in err
    assert "The run is not finished" in (tmp_path / "deep/er/page.html").read_text()


def test_quiet_prints_nothing(run, tmp_path):
    write_folder(tmp_path / "a", [line(20)])
    assert run("report", "a", "--quiet") == (0, "", "")
    assert (tmp_path / "report.html").exists()


def test_an_interrupted_watch_is_no_failure(run, tmp_path, monkeypatch):
    write_folder(tmp_path / "a", [line(20)])
    monkeypatch.setattr(watch, "page", interrupted_once())
    code, out, err = run("report", "a", "--watch")
    assert (code, out) == (0, "Report: report.html\n")
    assert err == "Watching; open report.html in a browser. Ctrl-C stops.\n"


@pytest.mark.parametrize("words", [[], ["--watch"]])
def test_files_of_the_data_are_fetched_on_request_also_by_a_page_that_is_watched(run, tmp_path, monkeypatch, words):
    write_folder(tmp_path / "a", [line(20)], summary={})
    asked = []

    def page(records, **_):
        asked.append([record.download for record in records])
        return ""

    monkeypatch.setattr(report, "page", page)
    monkeypatch.setattr(watch, "page", page)
    assert run("report", "a", *words, "--download")[0] == 0
    assert run("report", "a", *words)[0] == 0
    assert asked == [[True], [False]]


def interrupted_once():
    """Stands for `page` and is interrupted the first time."""
    calls = []

    def page(runs, **options):
        calls.append(runs)
        if len(calls) == 1:
            raise KeyboardInterrupt
        return report.page(runs, **options)

    return page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere is not the folder of a run: it has no config.json."),
        (["a", "nowhere"], "nowhere is not the folder of a run"),
        (["a", "--out", "a"], "--out must name a file, got the folder a. For example: --out a/report.html"),
        (["a", "--out", "file/report.html"], "Cannot write to file: "),
        (["a", "--out", 250 * "x"], "xxx: File name too long. Choose another --out."),  # before any work is done
        (["a", "--device", "quantum"], "runtime.device must be auto, cpu, cuda or cuda:N, got 'quantum'."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(run, tmp_path, words, message):
    write_folder(tmp_path / "a", [line(20)])
    (tmp_path / "file").write_text("not a folder")
    code, out, err = run("report", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


@pytest.fixture
def finished_demo(monkeypatch):
    """A demo whose three runs are there at once."""

    def train(out, fold, follow):
        for method in demo.METHODS:
            write_folder(out / method, [line(20)], method=method)
        return Table(["method"], [["aggmatch"]])

    monkeypatch.setattr(demo, "run", train)


def test_the_demo_ends_with_a_report_of_its_runs(run, tmp_path, finished_demo):
    code, out, _ = run("demo", "--out", "d")
    assert code == 0
    assert re.search(r"Report: d/report.html\nAll of it took \d+ s\.\n$", out)
    assert "3 runs on digits" in (tmp_path / "d/report.html").read_text()


def test_the_demo_does_not_fail_with_its_report(run, finished_demo, monkeypatch):
    def page(*_, **__):
        raise ValueError("no ink")

    monkeypatch.setattr(report, "page", page)
    code, out, err = run("demo", "--out", "d")
    assert code == 0
    assert "aggmatch" in out
    assert err == "The report could not be made: no ink\n"
