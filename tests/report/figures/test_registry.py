"""The registry of figures: names, order, and what happens if something cannot be drawn."""

from pathlib import Path

import pytest
from tests.folders import line, write_folder

from aggmatch.errors import AggMatchError
from aggmatch.report.figures import ALIASES, CHAPTERS, FIGURES, Figure, describe, draw, select
from aggmatch.runs.stored import StoredRun, read_runs

OWN = '''"""Number of steps of each run."""
from aggmatch.report.figure import Panel, Plot, house_style, new_figure
from aggmatch.report.figures import Figure


def draw(runs):
    with house_style():
        figure = new_figure(3, 2)
        figure.subplots().bar([run.name for run in runs], [run.steps for run in runs])
    yield Panel("steps", "Steps", "Steps of each run.", [Plot("", figure)])


FIGURE = Figure(draw, chapter="training", needs="its log", order=15)
'''
READING_ORDER = [
    "accuracy",
    "losses",
    "pseudo_labels",
    "separation",
    "class_shares",
    "queue",
    "class_accuracy",
    "confusion",
    "calibration",
    "refinement",
    "mistakes",
    "doubts",
    "explain",
    "attention",
    "batch_attention",
    "embedding",
]


def short_run(tmp_path: Path) -> list[StoredRun]:
    return read_runs([write_folder(tmp_path / "run", [line(5, accuracy_average=12.0)])])


def test_all_figures_are_selected_in_reading_order():
    assert list(select()) == READING_ORDER


@pytest.mark.parametrize("name", FIGURES.names())
def test_every_figure_is_described_in_one_line(name):
    assert describe(name).endswith(".")
    assert FIGURES.load(name).needs


def test_every_chapter_has_a_figure():
    assert {figure.chapter for figure in select().values()} == set(CHAPTERS)


@pytest.mark.parametrize(
    ("names", "figures"),
    [
        (["embedding", "accuracy"], ["accuracy", "embedding"]),
        (["predictions"], ["class_accuracy", "confusion", "calibration"]),
        (["pseudo-labels"], ["refinement", "mistakes", "doubts", "explain"]),
        (["features"], ["embedding"]),
        (["curves"], ["accuracy", "losses", "pseudo_labels", "queue"]),
        (["labels"], ["refinement", "mistakes"]),
        (["attention", "explain", "explain"], ["explain", "attention"]),
        ([], []),
    ],
)
def test_names_select_figures_chapters_and_groups_by_former_names(names, figures):
    assert list(select(names)) == figures


def test_former_names_hide_no_figure_or_chapter():
    assert not set(ALIASES) & {*FIGURES.names(), *CHAPTERS}


@pytest.mark.parametrize(("name", "close"), [("attentoin", "attention"), ("curve", "curves"), ("lables", "labels")])
def test_an_unknown_name_is_an_error_before_anything_is_drawn(rivals, name, close):
    with pytest.raises(AggMatchError, match=f"'{name}'. Did you mean '{close}'"):
        next(draw(rivals, ["accuracy", name]))


def test_a_file_adds_a_figure_in_its_place(tmp_path):
    (tmp_path / "steps.py").write_text(OWN)
    name = f"{tmp_path / 'steps.py'}:FIGURE"
    assert describe(name) == "Number of steps of each run."
    drawn = [(figure, panel.name) for figure, panel in draw(short_run(tmp_path), ["losses", name, "accuracy"])]
    assert drawn == [("accuracy", "accuracy"), (name, "steps"), ("losses", "losses")]


def test_a_figure_of_an_unknown_chapter_is_an_error():
    with pytest.raises(AggMatchError, match="'trainig'. Did you mean 'training'"):
        Figure(lambda _: iter(()), chapter="trainig", needs="its log")


def test_runs_are_drawn_as_far_as_their_folders_allow(tmp_path):
    assert [name for name, _ in draw(short_run(tmp_path))] == ["accuracy", "losses"]


def no_data(_: StoredRun) -> None:
    raise AggMatchError("digits is not in data.")


def test_what_cannot_be_drawn_is_reported_and_the_rest_is_drawn(rival_folders: list[Path], monkeypatch, quick_map):
    monkeypatch.setattr(StoredRun, "data", no_data)
    gaps: dict[str, str] = {}
    drawn = dict.fromkeys(name for name, _ in draw(read_runs(rival_folders), missing=gaps.__setitem__))
    assert list(drawn) == READING_ORDER[:7]
    assert list(gaps) == READING_ORDER[7:]
    assert set(gaps.values()) == {"digits is not in data."}


def test_what_cannot_be_drawn_is_an_error_without_a_callback(rival_folders: list[Path], monkeypatch):
    monkeypatch.setattr(StoredRun, "data", no_data)
    with pytest.raises(AggMatchError, match="digits is not in data"):
        list(draw(read_runs(rival_folders), ["embedding"]))


def test_figures_marked_quick_need_no_data(rival_folders: list[Path], monkeypatch):
    monkeypatch.setattr(StoredRun, "data", no_data)
    quick = [name for name, figure in select().items() if figure.quick]
    assert list(dict.fromkeys(name for name, _ in draw(read_runs(rival_folders), quick))) == quick
