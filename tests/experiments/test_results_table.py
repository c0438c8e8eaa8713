import csv
import io
import json
import shutil
import statistics
from dataclasses import replace

import pytest
from tests.folders import line, write_folder

from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import collect
from aggmatch.experiments.results_table import ResultsTable, group_runs
from aggmatch.storage.files import sealed

EVALUATED = {"accuracy_average": 50.0, "accuracy_online": 49.0}


@pytest.fixture
def results(plan, pretend):
    """Stored runs of the tiny table, by (method, labels, fold) → accuracy and, for an unfinished run, step."""

    def make(figures, **changes):
        made = plan(folds=3, **changes)
        for run in made.runs:
            key = (run.settings.method_name, run.settings.data.labels, run.settings.data.fold)
            if key in figures:
                pretend(run, *figures[key])
        return collect(made.runs)

    return make


def rows(table):
    return [list(row) for row in table.for_readers().rows]


QUICK = "model.name=small-4, train.batch=10, train.unlabeled_ratio=2"


def test_folds_are_averaged_and_the_best_method_comes_first(results):
    folds = {("supervised", 10, fold): (accuracy,) for fold, accuracy in enumerate((61.0, 64.0, 62.0))}
    table = ResultsTable(group_runs(results(folds | {("fixmatch", 10, 2): (70.0,)}))).for_readers()
    spread = f"62.33 ± {statistics.stdev([61, 64, 62]):.2f}"
    assert list(table.columns) == ["method", "fold", "accuracy", "median"]
    assert [list(row) for row in table.rows] == [
        ["fixmatch", "2", "70.00", "70.00"],
        ["supervised", "0, 1, 2", spread, spread],
    ]
    assert table.title == (
        f"Test accuracy in percent: digits, 10 labels, 4 steps, paper recipe, average network, with {QUICK}, "
        "mean ± sample deviation over folds, a CPU"
    )
    assert table.notes == ["Median: of the last 1 evaluation."]


def test_facts_that_all_rows_share_are_in_the_title_only(results):
    several = results({(method, 10, fold): (61.0,) for method in ("supervised", "fixmatch") for fold in (0, 2)})
    table = ResultsTable(group_runs(several)).for_readers()
    assert list(table.columns) == ["method", "accuracy", "median"]
    assert "digits, 10 labels, folds 0, 2, 4 steps, " in table.title


def test_the_table_shows_how_long_runs_took_to_an_accuracy(results):
    (run,) = results({("supervised", 10, 0): (61.0,)})
    timed = replace(
        run, records=[{"step": step, "accuracy_average": 20.0 * step, "seconds": 90.0 * step} for step in (2, 4)]
    )
    table = ResultsTable(group_runs([timed]), reach=[50, 92.5]).for_readers()
    assert list(table.columns) == ["method", "accuracy", "median", "minutes to 50 %", "minutes to 92.5 %"]
    assert list(table.rows[0])[3:] == ["6.00", None]


def test_rows_of_one_data_set_and_number_of_labels_stay_together(results):
    figures = {("supervised", 10, 0): (61.0,), ("fixmatch", 10, 0): (65.0,), ("supervised", 20, 0): (80.0,)}
    table = ResultsTable(group_runs(results(figures)))
    assert [row[:3] for row in rows(table)] == [
        ["fixmatch", 10, "65.00"],
        ["supervised", 10, "61.00"],
        ["supervised", 20, "80.00"],
    ]


def test_an_unfinished_run_has_its_own_row_with_its_steps(results):
    table = ResultsTable(group_runs(results({("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (50.0, 3)})))
    assert [row[:4] for row in rows(table)] == [
        ["supervised", "0", "4", "61.00"],
        ["supervised", "1", "3 of 4", "50.00"],
    ]


def test_settings_that_differ_from_the_recipe_are_named(results):
    found = results({("supervised", 10, 0): (61.0,)}) + results({("supervised", 10, 0): (62.0,)}, optim__lr=0.5)
    table = ResultsTable(group_runs(found))
    assert [row[1:3] for row in rows(table)] == [["optim.lr=0.5", "62.00"], ["", "61.00"]]
    assert f", with {QUICK}, " in table.for_readers().title, "what all rows changed is in the title"


@pytest.fixture
def curved(results):
    """A run with 25 evaluations and pseudo labels."""
    (run,) = results({("supervised", 10, 0): (61.0,)})
    points = [
        {"step": 10 * n, "accuracy_average": float(n), "accuracy_online": 0.0, "pseudo_precision": 0.5}
        for n in range(1, 26)
    ]
    return replace(run, records=[{**point, "pseudo_coverage": 0.25} for point in points])


def test_accuracies_after_steps_are_empty_if_the_run_was_not_evaluated_then(curved):
    table = ResultsTable(group_runs([curved]), at=[30, 35, 2000]).for_readers()
    assert list(table.columns) == ["method", "30", "35", "2,000", "accuracy", "median"]
    assert list(table.rows[0][1:]) == ["3.00", None, None, "61.00", "15.50"]
    assert table.notes == ["Median: of the last 20 evaluations."]


def test_pseudo_labels_are_those_of_the_last_evaluation(curved):
    table = ResultsTable(group_runs([curved])).for_readers()
    assert list(table.columns) == ["method", "accuracy", "median", "pseudo labels right", "used"]
    assert list(table.rows[0][3:]) == ["50.00", "25.00"]


def test_classes_have_columns_that_are_empty_for_unfinished_runs(results):
    figures = {("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (50.0, 3)}
    table = ResultsTable(group_runs(results(figures)), by_class=True).for_readers()
    assert list(table.columns) == ["method", "fold", "steps", *map(str, range(10)), "accuracy", "median"]
    assert [list(row[3:6]) for row in table.rows] == [["61.00", "62.00", "63.00"], [None, None, None]]


def test_machines_get_every_number_in_its_own_column(results):
    found = results({("supervised", 10, fold): (accuracy,) for fold, accuracy in enumerate((61.0, 64.0))})
    table = ResultsTable(group_runs(found))
    (row,) = csv.DictReader(table.printed("csv").splitlines())
    assert (row["accuracy"], row["n"], row["steps"], row["schedule"]) == ("62.5", "2", "4", "4")
    assert float(row["accuracy std"]) == pytest.approx(statistics.stdev([61, 64]))
    assert json.loads(table.printed("json"))[0]["median"] == 62.5


def test_readers_get_markdown_with_a_title_and_latex(results):
    table = ResultsTable(group_runs(results({("supervised", 10, 0): (61.0,)})))
    title, _, heading, *_ = table.printed("md").splitlines()
    assert title.startswith(
        "Test accuracy in percent: digits, 10 labels, fold 0, 4 steps, paper recipe, average network"
    )
    assert heading == "| method | accuracy | median |"
    assert r"\caption{Test accuracy in percent: digits" in table.printed("tex")


@pytest.mark.parametrize("order", [1, -1])
def test_of_runs_that_differ_only_in_cadence_the_one_with_more_evaluations_is_shown(results, order):
    (few,), (many,) = (results({("supervised", 10, 0): (61.0,)}, train__log_every=log_every) for log_every in (2, 1))
    many = replace(many, records=[{"step": 2, "accuracy_average": 50.0, "accuracy_online": 50.0}, *many.records])
    table = ResultsTable(group_runs([few, many][::order]))
    assert table.runs == [many]
    assert table.duplicates == [few]


def on(run, data):
    """The same run on another data set."""
    return replace(run, settings=replace(run.settings, data=replace(run.settings.data, name=data)))


def test_readers_see_the_last_part_of_a_path_and_machines_get_the_whole_path(results):
    (result,) = results({("supervised", 10, 0): (61.0,)})
    table = ResultsTable(group_runs([on(result, "/home/me/photos")]))
    assert table.for_readers().title.startswith("Test accuracy in percent: photos, 10 labels")
    (row,) = json.loads(table.printed("json"))
    assert row["data"] == "/home/me/photos"


def test_folders_of_the_same_name_are_shown_with_their_paths(results):
    (result,) = results({("supervised", 10, 0): (61.0,)})
    table = ResultsTable(group_runs([on(result, f"/{place}") for place in ("a/photos", "b/photos", "c/pictures")]))
    assert [row[1] for row in rows(table)] == ["/a/photos", "/b/photos", "pictures"]


def test_without_an_evaluated_run_the_table_is_an_error(results):
    (result,) = results({("supervised", 10, 0): (61.0, 3)})
    with pytest.raises(AggMatchError, match="no run was evaluated"):
        ResultsTable(group_runs([replace(result, records=[])]))


# Folders of images ---------------------------------------------------------------------------------------------------


@pytest.fixture
def grown(tmp_path):
    """Run folders on the same folder of images, which had 10 and then 20 labels, and on 20 other labels."""
    given = {"first": (10, "aaaa"), "second": (20, "bbbb"), "third": (20, "cccc")}
    for name, (labels, fingerprint) in given.items():
        path = write_folder(tmp_path / "runs" / name, [line(1000, **EVALUATED)], {}, data__labels=None)
        split = json.loads((path / "split.json").read_text())
        for key in ("labeled", "labels"):
            split[key] = split[key][:labels]
        (path / "split.json").write_text(json.dumps(sealed(split | {"fingerprint": fingerprint})))
    return tmp_path / "runs"


@pytest.mark.parametrize("stored", [False, True])
def test_runs_on_a_folder_with_more_or_other_labels_have_rows_of_their_own(run, grown, stored):
    place = grown
    if stored:
        assert run("results", grown, "--out", "kept.jsonl")[1] == "Wrote 3 runs to kept.jsonl.\n"
        place = "kept.jsonl"
    code, out, err = run("results", place, "--as", "csv")
    assert (code, err) == (0, "")
    assert [row["labels"] for row in csv.DictReader(io.StringIO(out))] == ["10", "20", "20"]


def test_a_run_that_is_found_twice_is_counted_and_shown_once(run, grown):
    shutil.copytree(grown / "first", grown / "copy")
    code, out, err = run("results", grown, "--as", "csv")
    assert (code, err) == (0, "Left out 1 run: the same settings, labels and images as another one.\n")
    assert len(out.splitlines()) == 4
