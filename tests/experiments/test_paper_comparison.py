import csv
import json
import statistics
from dataclasses import replace

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.local import InTurn
from aggmatch.experiments.paper import PaperTable, by_class, grid, method, on
from aggmatch.experiments.paper_comparison import Filled, describe_left_out, fill
from aggmatch.experiments.planned import collect


@pytest.fixture
def filled(plan, pretend):
    """The tiny table filled with accuracies by (method, labels, fold), with a step for unfinished runs."""

    def make(figures, any_length: bool = False, **changes) -> Filled:
        made = plan(**changes)
        for run in made.runs:
            key = (run.settings.method_name, run.settings.data.labels, run.settings.data.fold)
            if key in figures:
                accuracy, *step = figures[key]
                pretend(run, accuracy, *step)
        return fill(made, collect(made.runs), any_length=any_length)

    return make


def rows(table):
    return [list(row) for row in table.rows]


def test_our_numbers_are_above_those_of_the_paper(filled):
    figures = {("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (64.0,)}
    table = filled(figures).grid()
    spread = statistics.stdev([61, 64])
    assert list(table.columns) == ["method", "", "10 labels", "20 labels"]
    assert rows(table) == [
        ["Labels only", "ours", f"62.50 ± {spread:.2f}", None],
        ["", "median", f"62.50 ± {spread:.2f}", None],
        ["", "paper", "60.00 ± 1.50", None],
        ["FixMatch", "ours", None, None],
        ["", "paper", "70.00", "71.50 ± 2.00"],
    ]
    assert "The protocol is 2 folds of 4 steps." in table.notes
    assert "Ours: average network after the last step, sample deviation; a CPU." in table.notes


def test_a_table_without_runs_has_no_numbers_of_ours(filled):
    table = filled({}).grid()
    assert {cell for row in rows(table) if row[1] == "ours" for cell in row[2:]} == {None}
    assert not any("Ours" in note for note in table.notes)


def test_fewer_folds_are_marked(filled):
    table = filled({("supervised", 10, 0): (61.0,)}).grid()
    assert rows(table)[0][2] == "61.00 †"
    assert "† 1 fold of 4 steps" in table.notes


def test_fewer_steps_are_marked(filled):
    figures = {("supervised", 10, fold): (61.0,) for fold in (0, 1)}
    table = filled(figures, train__steps=3).grid()
    assert rows(table)[0][2] == "61.00 ± 0.00 †"
    assert "† 2 folds of 3 steps" in table.notes


def test_unfinished_runs_show_their_last_evaluation_and_are_marked(filled):
    figures = {("supervised", 10, 0): (61.0, 3), ("fixmatch", 20, 0): (50.0,)}
    table = filled(figures).grid()
    assert rows(table)[0][2] == "61.00 †"
    assert rows(table)[3][3] == "50.00 ‡"
    assert "† 1 fold unfinished after 3 of 4 steps" in table.notes
    assert "‡ 1 fold of 4 steps" in table.notes
    assert any("after the last step, of unfinished runs at their last evaluation, " in note for note in table.notes)


def test_the_note_on_the_last_step_is_left_out_if_no_run_is_finished(filled):
    notes = filled({("supervised", 10, 0): (61.0, 3)}).grid().notes
    assert "Ours: average network at the last evaluation of unfinished runs, sample deviation." in notes


def test_settings_that_differ_from_the_table_are_marked_and_named(filled):
    figures = {("supervised", 10, fold): (61.0,) for fold in (0, 1)}
    result = filled(figures, optim__lr=0.5, train__seed=3)
    note = "† 2 folds of 4 steps; optim.lr is 0.5, not 0.03; train.seed is 3, not 0"
    for table in (result.grid(), result.listing()):
        assert "61.00 ± 0.00 †" in table.markdown()
        assert note in table.notes
    assert result.long_row(result.table.cells[0])[-1] == "optim.lr is 0.5, not 0.03; train.seed is 3, not 0"


def test_the_median_is_that_of_the_last_twenty_evaluations(plan, pretend):
    made = plan()
    for run, first in zip(made.runs[:2], (0.0, 10.0), strict=True):
        pretend(run, 61.0)
        points = [{"step": n, "accuracy_average": first + n, "accuracy_online": 0.0} for n in range(1, 26)]
        run.folder.metrics.write_text("".join(json.dumps(point) + "\n" for point in points))
    result = fill(made, collect(made.runs), any_length=False)
    median = statistics.median(range(6, 26)) + 5
    assert rows(result.grid())[1][1:3] == ["median", f"{median:.2f} ± {statistics.stdev([0, 10]):.2f}"]
    assert "Median: of the last 20 evaluations of each run." in result.grid().notes
    assert json.loads(result.long().json())[0]["median"] == median
    assert json.loads(result.long().json())[0]["evaluations"] == 20


def test_an_unfinished_fold_is_never_averaged_with_a_finished_one(filled):
    figures = {("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (10.0, 3)}
    assert rows(filled(figures).grid())[0][2] == "61.00 †"


def test_a_run_that_was_never_evaluated_does_not_count(plan, pretend):
    made = plan()
    pretend(made.runs[0], 10.0, step=3)
    (result,) = collect(made.runs)
    assert fill(made, [replace(result, records=[])], any_length=False).ours == {}


def test_of_stored_runs_the_longest_finished_ones_count(plan, pretend):
    short, long = plan(train__steps=3), plan(train__steps=4)
    for run, accuracy in zip(short.runs[:2], (10.0, 12.0), strict=True):
        pretend(run, accuracy)
    pretend(long.runs[0], 61.0)
    results = collect([*short.runs, *long.runs])
    place = ("Labels only", "10 labels")
    assert fill(long, results, any_length=True).ours[place].values == [61.0]
    assert fill(short, results, any_length=False).ours[place].values == [10.0, 12.0]
    assert fill(short, results[:2], any_length=True).ours[place].values == [10.0, 12.0]
    assert fill(long, results[:2], any_length=False).ours == {}


def test_how_often_a_run_was_evaluated_does_not_matter(plan, pretend):
    often = plan(train__evaluate_every=1, train__log_every=1)
    pretend(often.runs[0], 61.0)
    assert len(fill(plan(), collect(often.runs), any_length=True).ours) == 1


def test_a_run_of_other_settings_is_left_out_and_the_setting_is_named(plan, pretend):
    other = plan(optim__lr=0.5)
    pretend(other.runs[0], 61.0)
    results = collect(other.runs)
    assert fill(plan(), results, any_length=True).ours == {}
    assert left_out(plan(), results) == [
        "Left out, because optim.lr is 0.5, not 0.03: supervised (paper recipe) on digits, 10 labels, fold 0, 4 steps."
    ]
    assert left_out(other, results) == []


def left_out(made, results, any_length=True):
    return describe_left_out(made, results, fill(made, results, any_length=any_length), any_length=any_length)


@pytest.mark.parametrize("order", [1, -1])
def test_of_runs_that_differ_only_in_cadence_the_most_complete_counts(plan, pretend, order):
    few, many = plan(), plan(train__log_every=1)
    for made in (few, many):
        pretend(made.runs[0], 61.0)
    (less,), (more,) = (collect(made.runs) for made in (few, many))
    more = replace(more, records=[{"step": 2, "accuracy_average": 50.0, "accuracy_online": 50.0}, *more.records])
    results = [less, more][::order]
    assert fill(few, results, any_length=True).runs.keys() == {more.key}
    assert left_out(few, results) == [
        "Left out, because the table shows another run of the same settings and fold: "
        "supervised (paper recipe) on digits, 10 labels, fold 0, 4 steps."
    ]


def test_every_run_that_is_left_out_has_a_reason(plan, pretend, tiny):
    short, long, more = plan(train__steps=3), plan(), plan(folds=4)
    for run in (short.runs[0], long.runs[0], long.runs[-1], more.runs[2], more.runs[3]):
        pretend(run, 61.0)
    results = collect([short.runs[0], long.runs[0], long.runs[-1], *more.runs[2:4]])
    narrowed = plan(replace(tiny, cells=tiny.cells[:1]))
    elsewhere = (
        "Left out, because no cell asks for such a run: fixmatch (paper recipe) on digits, 20 labels, fold 1, 4 steps."
    )
    folds = (
        "Left out, because the table asks for 2 folds, from fold 0 on: "
        "supervised (paper recipe) on digits, 10 labels, fold 2, 4 steps; "
        "supervised (paper recipe) on digits, 10 labels, fold 3, 4 steps."
    )
    shorter = "supervised (paper recipe) on digits, 10 labels, fold 0, 3 steps."
    went_further = f"Left out, because other runs of its cell went further: {shorter}"
    assert left_out(narrowed, results) == [went_further, elsewhere, folds]
    other_length = f"Left out, because train.steps is 3, not 4: {shorter}"
    assert left_out(narrowed, results, any_length=False) == [other_length, elsewhere, folds]
    (unevaluated,) = left_out(long, [replace(results[1], summary=None, records=[])])
    assert unevaluated.startswith("Left out, because it was not evaluated yet: ")


def test_of_many_runs_left_out_for_one_reason_a_few_are_named(plan, pretend):
    made = plan(optim__lr=0.5)
    for run in made.runs[:6]:
        pretend(run, 61.0)
    sentences = left_out(plan(), collect(made.runs))
    assert len(sentences) == 1
    assert sentences[0].count(" on digits, ") == 3
    assert sentences[0].endswith("; 3 more.")


def test_a_table_by_class_takes_class_accuracies_of_one_run(plan, pretend):
    row = {"FixMatch": (on("digits", 10, "fixmatch"), "1.0 2.25 3")}
    table = PaperTable("classes", "", by_class(("3", "7"), row), folds=1, steps=4)
    made = plan(table)
    assert len(made.runs) == 1
    pretend(made.runs[0], 61.0)
    result = fill(made, collect(made.runs), any_length=False)
    assert list(result.grid().columns) == ["method", "", "3", "7", "all"]
    assert rows(result.grid()) == [
        ["FixMatch", "ours", "64.0", "68.00", "61"],
        ["", "median", None, None, "61"],
        ["", "paper", "1.0", "2.25", "3"],
    ]
    assert len(result.runs) == 1


def test_an_unfinished_run_has_no_class_accuracies_yet(plan, pretend):
    row = {"FixMatch": (on("digits", 10, "fixmatch"), "1.0 2.0")}
    made = plan(PaperTable("classes", "", by_class(("3",), row), folds=1, steps=4))
    pretend(made.runs[0], 61.0, step=3)
    assert list(fill(made, collect(made.runs), any_length=False).ours) == [("FixMatch", "all")]


def test_a_terminal_shows_the_grid_if_it_fits_and_one_line_per_cell_if_not(filled):
    result = filled({("supervised", 10, 0): (61.0,), ("supervised", 20, 0): (50.0, 3)})
    assert result.fitting(result.grid().width).columns == result.grid().columns
    narrow = result.fitting(result.grid().width - 1)
    assert list(narrow.columns) == ["method", "data, labels", "ours", "median", "paper"]
    assert rows(narrow)[:3] == [
        ["Labels only", "10 labels", "61.00 †", "61.00", "60.00 ± 1.50"],
        ["Labels only", "20 labels", "50.00 ‡", "50.00", None],
        ["FixMatch", "10 labels", None, None, "70.00"],
    ]
    assert narrow.notes == result.grid().notes


def test_many_protocols_get_marks_that_differ(plan, pretend):
    columns = {str(labels): on("digits", labels) for labels in range(10, 70, 10)}
    made = plan(PaperTable("marks", "", grid(columns, {"x": (method("supervised"), "– " * 6)}), folds=1, steps=40))
    for step, run in enumerate(made.runs, 3):
        pretend(run, 50.0, step=step)
    marks = fill(made, collect(made.runs), any_length=False).marks()
    assert list(marks.values()) == ["†", "‡", "§", "¶", "††", "‡‡"]


def test_files_hold_the_grid_for_readers_and_the_numbers_for_machines(filled, tmp_path):
    figures = {("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (64.0,)}
    paths = filled(figures).write(tmp_path / "out")
    assert [path.name for path in paths] == ["tiny.md", "tiny.tex", "tiny.csv", "tiny.json"]
    markdown, latex, numbers, objects = (path.read_text() for path in paths)
    assert markdown.startswith("tiny: Digits\n\n| method |  | 10 labels | 20 labels |")
    assert r"62.50 $\pm$ 2.12" in latex
    assert r"\caption{Digits}" in latex
    first, *_ = csv.DictReader(numbers.splitlines())
    assert (first["row"], first["column"], first["n"], first["steps"]) == ("Labels only", "10 labels", "2", "4")
    assert json.loads(objects)[0]["difference"] == pytest.approx(2.5)
    assert json.loads(objects)[3] == {
        "row": "FixMatch",
        "column": "20 labels",
        "mean": None,
        "std": None,
        "n": 0,
        "steps": None,
        "schedule": None,
        "paper mean": 71.5,
        "paper std": 2.0,
        "difference": None,
        "median": None,
        "median std": None,
        "evaluations": None,
        "departures": None,
    }


def test_the_error_for_a_folder_that_cannot_be_written_names_it(filled, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match="file/out"):
        filled({}).write(tmp_path / "file/out")


def test_a_trained_table_shows_the_accuracies_of_its_summaries(plan, follow):
    made = plan()
    assert list(InTurn(follow).train(made.runs, quiet=True)) == []
    assert len(follow.titles) == 8
    table = fill(made, collect(made.runs), any_length=False)
    summaries = [json.loads(run.folder.summary.read_text()) for run in made.runs[:2]]
    assert table.ours["Labels only", "10 labels"].values == [summary["accuracy"] for summary in summaries]
    assert table.marks() == {}
    assert list(InTurn(follow).train(made.runs, quiet=True)) == []
    assert len(follow.titles) == 8, "nothing is trained twice"
