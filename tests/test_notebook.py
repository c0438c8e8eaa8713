"""Runs are shown while they train, and reports as a part of a notebook."""

import sys
import types

import pytest
from tests.conftest import toy_settings

import aggmatch
from aggmatch import notebook
from aggmatch.errors import AggMatchError
from aggmatch.training.begin import start
from aggmatch.training.run import Run


@pytest.fixture
def run(toy_data, tmp_path) -> Run:
    settings = toy_settings("supervised", train__steps=4, train__log_every=1, train__evaluate_every=2)
    return start(settings, tmp_path / "run", data=toy_data)


@pytest.fixture
def shown(monkeypatch) -> list[str]:
    """A Jupyter kernel, as far as `watch` needs one; holds everything that its cell has shown."""
    pages: list[str] = []

    class Handle:
        def update(self, page: str) -> None:
            pages.append(page)

    def display(page: str, display_id: bool) -> Handle:
        pages.append(page)
        return Handle()

    shell = types.SimpleNamespace(kernel=object())
    kernel = types.SimpleNamespace(get_ipython=lambda: shell, version_info=(9, 0))  # matplotlib asks for the version
    monkeypatch.setitem(sys.modules, "IPython", kernel)
    monkeypatch.setitem(sys.modules, "IPython.display", types.SimpleNamespace(HTML=str, display=display))
    return pages


def test_without_a_notebook_lines_of_text_follow_the_run(run, capsys):
    aggmatch.watch(run)
    assert "step 4/4" in capsys.readouterr().out
    assert run.finished


def test_in_a_notebook_curves_grow_while_the_run_trains(run, shown, capsys, monkeypatch):
    monkeypatch.setattr(notebook, "SHARE", 0)
    aggmatch.watch(run)
    first, *pages, last = shown
    assert first == "Training starts ..."
    assert ["step 1 of 4" in pages[0], "step 2 of 4, test accuracy" in pages[1]] == [True, True]
    assert "supervised: step 4 of 4, test accuracy" in last
    assert last.count("<svg") == 2
    assert capsys.readouterr().out == ""


def test_drawing_takes_only_a_share_of_the_time(run, shown, monkeypatch):
    monkeypatch.setattr(notebook, "SHARE", 10**6)
    aggmatch.watch(run)
    assert len(shown) == 3  # the start, the first record and the end


def test_a_shell_without_a_kernel_is_not_a_notebook(monkeypatch):
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: None))
    assert not notebook.in_notebook()


def test_a_report_is_shown_in_a_frame_and_can_be_written(run, tmp_path):
    aggmatch.watch(run)
    report = aggmatch.show_report(run.folder.path)
    assert report.html.startswith("<!doctype html>")
    assert '<iframe srcdoc="&lt;!doctype html&gt;' in report._repr_html_()
    assert repr(report).startswith(f"<Report on {run.folder.path}")
    report.write(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == report.html


def test_a_run_and_its_model_have_the_report_of_their_folder(run, monkeypatch):
    aggmatch.watch(run)
    monkeypatch.setattr(notebook, "page", lambda runs: f"page on {runs[0].name}")
    assert aggmatch.show_report(run).html == "page on supervised fold 0"
    model = aggmatch.TrainedModel.load(run.folder.path)
    assert model.report() == aggmatch.show_report(str(run.folder.path))


def test_everything_a_cell_may_end_with_is_shown_in_one_line(run):
    aggmatch.watch(run)
    model = aggmatch.TrainedModel.load(run.folder.path)
    size = len(run.data.test)
    for thing, words in (
        (run, ("Run in ", f"of {run.settings.train.steps}")),
        (run.split, (f"Split of {run.data.name}", "labelled")),
        (run.data, (f"DataSet {run.data.name}", "classes", f"{size} test images of 8×8×1")),
        (run.data.test, (f"Images: {size} images", f"{size} with a label")),
        (model, ("TrainedModel in ", f"on {run.data.name}", "8×8 pixels")),
        (model.evaluate(run.data), ("Evaluation: ", f"% right of {size} images")),
    ):
        text = repr(thing)
        assert len(text.splitlines()) == 1
        assert all(word in text for word in words), text


def test_a_folder_without_a_run_has_no_report(tmp_path):
    with pytest.raises(AggMatchError, match="config.json"):
        aggmatch.show_report(tmp_path)
