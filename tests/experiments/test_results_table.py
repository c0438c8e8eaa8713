import csv
import json
import statistics
from dataclasses import replace

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.experiments.reproduce import collect
from aggmatch.experiments.results_table import Overview, group


@pytest.fixture
def results(plan, pretend):
    """Results of some runs of the tiny table, by (method, labels, fold) → accuracy and, if it is unfinished, step."""

    def make(figures, **changes):
        made = plan(folds=3, **changes)
        for run in made.runs:
            key = (run.settings.method_name, run.settings.data.labels, run.settings.data.fold)
            if key in figures:
                pretend(run, *figures[key])
        return collect(made.runs)

    return make


def rows(overview):
    return [list(row) for row in overview.for_readers().rows]


QUICK = "model.name=small-4, train.batch=10, train.unlabeled_ratio=2"


def test_folds_are_averaged_and_the_best_method_comes_first(results):
    folds = {("supervised", 10, fold): (accuracy,) for fold, accuracy in enumerate((61.0, 64.0, 62.0))}
    table = Overview(group(results(folds | {("fixmatch", 10, 2): (70.0,)}))).for_readers()
    spread = f"62.33 ± {statistics.stdev([61, 64, 62]):.2f}"
    assert list(table.columns) == ["method", "fold", "accuracy", "median"]
    assert [list(row) for row in table.rows] == [
        ["fixmatch", "2", "70.00", "70.00"],
        ["supervised", "0, 1, 2", spread, spread],
    ]
    assert table.title == (
        f"Test accuracy in percent: digits, 10 labels, 4 steps, average network, with {QUICK}, "
        "mean ± sample deviation over folds, a CPU"
    )
    assert table.notes == ["Median: of the last 1 evaluation."]


def test_what_all_rows_share_stands_in_the_title_alone(results):
    several = results({(method, 10, fold): (61.0,) for method in ("supervised", "fixmatch") for fold in (0, 2)})
    table = Overview(group(several)).for_readers()
    assert list(table.columns) == ["method", "accuracy", "median"]
    assert "digits, 10 labels, folds 0, 2, 4 steps, " in table.title


def test_problems_are_kept_apart(results):
    figures = {("supervised", 10, 0): (61.0,), ("fixmatch", 10, 0): (65.0,), ("supervised", 20, 0): (80.0,)}
    overview = Overview(group(results(figures)))
    assert [row[:3] for row in rows(overview)] == [
        ["fixmatch", 10, "65.00"],
        ["supervised", 10, "61.00"],
        ["supervised", 20, "80.00"],
    ]


def test_an_unfinished_run_has_a_row_of_its_own_and_says_how_far_it_went(results):
    overview = Overview(group(results({("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (50.0, 3)})))
    assert [row[:4] for row in rows(overview)] == [
        ["supervised", "0", "4", "61.00"],
        ["supervised", "1", "3 of 4", "50.00"],
    ]


def test_settings_that_are_not_the_recipes_are_named(results):
    found = results({("supervised", 10, 0): (61.0,)}) + results({("supervised", 10, 0): (62.0,)}, optim__lr=0.5)
    assert [row[1:3] for row in rows(Overview(group(found)))] == [
        [QUICK.replace("train.batch", "optim.lr=0.5, train.batch"), "62.00"],
        [QUICK, "61.00"],
    ]


@pytest.fixture
def curved(results):
    """A result with a curve of its own, of which 25 evaluations of pseudo labels are known."""
    (result,) = results({("supervised", 10, 0): (61.0,)})
    points = [
        {"step": 10 * n, "accuracy_average": float(n), "accuracy_online": 0.0, "pseudo_precision": 0.5}
        for n in range(1, 26)
    ]
    return replace(result, curve=[{**point, "pseudo_coverage": 0.25} for point in points])


def test_accuracies_of_steps_are_those_of_the_curve_and_a_dash_where_nothing_was_measured(curved):
    table = Overview(group([curved]), at=[30, 35, 2000]).for_readers()
    assert list(table.columns) == ["method", "30", "35", "2,000", "accuracy", "median"]
    assert list(table.rows[0][1:]) == ["3.00", None, None, "61.00", "15.50"]
    assert table.notes == ["Median: of the last 20 evaluations."]


def test_pseudo_labels_are_those_of_the_last_evaluation(curved):
    table = Overview(group([curved])).for_readers()
    assert list(table.columns) == ["method", "accuracy", "median", "pseudo labels right", "used"]
    assert list(table.rows[0][3:]) == ["50.00", "25.00"]


def test_classes_have_columns_and_unfinished_runs_a_dash_in_them(results):
    figures = {("supervised", 10, 0): (61.0,), ("supervised", 10, 1): (50.0, 3)}
    table = Overview(group(results(figures)), by_class=True).for_readers()
    assert list(table.columns) == ["method", "fold", "steps", *map(str, range(10)), "accuracy", "median"]
    assert [list(row[3:6]) for row in table.rows] == [["61.00", "62.00", "63.00"], [None, None, None]]


def test_machines_get_every_number_by_itself(results):
    found = results({("supervised", 10, fold): (accuracy,) for fold, accuracy in enumerate((61.0, 64.0))})
    overview = Overview(group(found))
    (row,) = csv.DictReader(overview.printed("csv").splitlines())
    assert (row["accuracy"], row["n"], row["steps"], row["schedule"]) == ("62.5", "2", "4", "4")
    assert float(row["accuracy std"]) == pytest.approx(statistics.stdev([61, 64]))
    assert json.loads(overview.printed("json"))[0]["median"] == 62.5


def test_readers_get_markdown_with_what_the_figures_are_and_latex(results):
    overview = Overview(group(results({("supervised", 10, 0): (61.0,)})))
    title, _, heading, *_ = overview.printed("md").splitlines()
    assert title.startswith("Test accuracy in percent: digits, 10 labels, fold 0, 4 steps, average network")
    assert heading == "| method | accuracy | median |"
    assert r"\caption{Test accuracy in percent: digits" in overview.printed("tex")


@pytest.mark.parametrize("order", [1, -1])
def test_of_runs_that_differ_in_cadence_alone_the_one_with_more_evaluations_is_shown(results, order):
    (few,), (many,) = (results({("supervised", 10, 0): (61.0,)}, train__log_every=log_every) for log_every in (2, 1))
    many = replace(many, curve=[{"step": 2, "accuracy_average": 50.0, "accuracy_online": 50.0}, *many.curve])
    overview = Overview(group([few, many][::order]))
    assert overview.results == [many]
    assert overview.others == [few]


def on(result, data):
    """The same result on another data set."""
    return replace(result, configuration=result.configuration | {"data": result.configuration["data"] | {"name": data}})


def test_a_folder_is_called_by_the_last_part_of_its_path_and_machines_get_all_of_it(results):
    (result,) = results({("supervised", 10, 0): (61.0,)})
    overview = Overview(group([on(result, "/home/me/photos")]))
    assert overview.for_readers().title.startswith("Test accuracy in percent: photos, 10 labels")
    (row,) = json.loads(overview.printed("json"))
    assert row["data"] == "/home/me/photos"


def test_folders_of_one_name_are_told_apart_by_their_paths(results):
    (result,) = results({("supervised", 10, 0): (61.0,)})
    overview = Overview(group([on(result, f"/{place}") for place in ("a/photos", "b/photos", "c/pictures")]))
    assert [row[1] for row in rows(overview)] == ["/a/photos", "/b/photos", "pictures"]


def test_without_a_figure_there_is_no_table(results):
    (result,) = results({("supervised", 10, 0): (61.0, 3)})
    with pytest.raises(AggMatchError, match="There is nothing to show yet"):
        Overview(group([replace(result, curve=[])]))
