"""The command `report`, and the report that ends the demo."""

import re
import sys

import pytest
from tests.analysis.folders import line, write_folder

from aggmatch import cli, console
from aggmatch.analysis import report, watch
from aggmatch.experiments import demo
from aggmatch.tables import Table


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Runs the command line in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console.stdout, "width", 200)
    monkeypatch.setattr(console.stderr, "width", 200)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["aggmatch", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.out, captured.err

    return run


def test_the_page_is_written_where_it_is_wanted(call, tmp_path):
    write_folder(tmp_path / "a", [line(20)])
    code, out, err = call("report", "a", "--out", "deep/er/page.html")
    assert (code, out) == (0, "Report: deep/er/page.html\n")
    assert "curves: " in err
    assert "The run is not finished" in (tmp_path / "deep/er/page.html").read_text()


def test_quiet_prints_nothing(call, tmp_path):
    write_folder(tmp_path / "a", [line(20)])
    assert call("report", "a", "--quiet") == (0, "", "")
    assert (tmp_path / "report.html").exists()


def test_an_interrupted_watch_is_no_failure(call, tmp_path, monkeypatch):
    write_folder(tmp_path / "a", [line(20)])
    monkeypatch.setattr(watch, "page", interrupted_once())
    code, out, err = call("report", "a", "--watch")
    assert (code, out) == (0, "Report: report.html\n")
    assert err == "Watching; open report.html in a browser. Ctrl-C stops.\n"


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
        (["a", "--device", "quantum"], "runtime.device must be auto, cpu, cuda or cuda:N, got 'quantum'."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(call, tmp_path, words, message):
    write_folder(tmp_path / "a", [line(20)])
    (tmp_path / "file").write_text("not a folder")
    code, out, err = call("report", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1


@pytest.fixture
def finished_demo(monkeypatch):
    """A demo whose three runs are there at once."""

    def run(out, fold, follow):
        for method in demo.METHODS:
            write_folder(out / method, [line(20)], method=method)
        return Table(["method"], [["aggmatch"]])

    monkeypatch.setattr(demo, "run", run)


def test_the_demo_ends_with_a_report_of_its_runs(call, tmp_path, finished_demo):
    code, out, _ = call("demo", "--out", "d")
    assert code == 0
    assert re.search(r"Report: d/report.html\nAll of it took \d+ s\.\n$", out)
    assert "3 runs on digits" in (tmp_path / "d/report.html").read_text()


def test_the_demo_does_not_fail_with_its_report(call, finished_demo, monkeypatch):
    def page(*_, **__):
        raise ValueError("no ink")

    monkeypatch.setattr(report, "page", page)
    code, out, err = call("demo", "--out", "d")
    assert code == 0
    assert "aggmatch" in out
    assert err == "The report could not be made: no ink\n"
