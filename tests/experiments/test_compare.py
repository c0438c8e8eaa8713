import csv
import json
import statistics
from pathlib import Path

import pytest

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.experiments import compare
from aggmatch.experiments.compare import Comparison
from aggmatch.experiments.planned import train_in_turn

QUICK = {"model.name": "small-4", "train.steps": 6, "train.batch": 10, "train.unlabeled_ratio": 2}


def layers(**changes):
    return [Layer("the test", QUICK | {key.replace("__", "."): value for key, value in changes.items()})]


def train(run, title):
    for _ in run.train():
        pass


def run_all(plan, out, follow=train):
    """Checks, trains and collects the runs of a plan."""
    runs = compare.place(plan, out)
    compare.check(runs)
    assert not list(train_in_turn(runs, follow))
    return compare.collect(runs)


def summary(fold, accuracy, **more):
    facts = {"data": "digits", "labels": 10, "steps": 6, "network": "average", "hardware": "a CPU", "seconds": 2.0}
    return facts | {"fold": fold, "accuracy": accuracy} | more


def test_a_table_has_mean_and_sample_deviation_best_first():
    result = Comparison({"a": [summary(0, 50.0), summary(1, 54.0)], "b": [summary(0, 90.0), summary(1, 91.0)]})
    table = result.table()
    assert [row[0] for row in table.rows] == ["b", "a"]
    assert list(table.rows[1][1:6]) == [52.0, pytest.approx(statistics.stdev([50, 54])), 2, 50.0, 54.0]
    assert table.title.startswith("digits, 10 labels, 6 steps, test accuracy of the average network")


def test_a_folder_is_called_by_the_last_part_of_its_path():
    result = Comparison({"a": [summary(0, 50.0, data="/home/me/photos")]})
    assert result.title().startswith("photos, 10 labels, ")


def test_one_fold_has_no_deviation():
    assert Comparison({"a": [summary(0, 50.0)]}).table().rows[0][2] is None


def test_a_fold_that_a_method_lacks_is_left_open_and_does_not_count():
    result = Comparison({"a": [summary(1, 54.0)], "b": [summary(0, 90.0), summary(1, 91.0)]})
    table = result.table()
    assert table.columns == ["method", "accuracy %", "± std", "n", "fold 0", "fold 1", "seconds"]
    assert list(table.rows[1]) == ["a", 54.0, None, 1, None, 54.0, 2.0]


def test_without_a_finished_run_there_is_nothing_to_compare():
    with pytest.raises(AggMatchError, match="no run finished"):
        compare.collect([])


def test_all_methods_train_on_the_same_folds(tmp_path: Path):
    result = run_all(compare.plan(["supervised", "fixmatch"], 2, layers()), tmp_path)
    for fold in (0, 1):
        splits = [json.loads((tmp_path / m / f"fold{fold}/split.json").read_text()) for m in ("supervised", "fixmatch")]
        assert splits[0] == splits[1]
    result.write(tmp_path)
    rows = list(csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines()))
    assert {row["method"] for row in rows} == {"supervised", "fixmatch"}
    objects = json.loads((tmp_path / "comparison.json").read_text())
    assert objects[0]["n"] == 2
    assert (tmp_path / "comparison.md").read_text().count("| supervised |") == 1


def test_a_comparison_goes_on_where_it_stopped(tmp_path: Path):
    plan = compare.plan(["supervised", "fixmatch"], 1, layers(runtime__checkpoint_every=2))
    trained = []

    def break_off_in_the_second(run, title):
        trained.append(title)
        for record in run.train():
            if len(trained) == 2 and record["step"] == 6:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_all(plan, tmp_path, break_off_in_the_second)

    def go_on(run, title):
        trained.append(title)
        train(run, title)

    result = run_all(plan, tmp_path, go_on)
    assert trained == ["supervised fold 0", "fixmatch fold 0", "fixmatch fold 0"]
    assert {name: len(runs) for name, runs in result.summaries.items()} == {"supervised": 1, "fixmatch": 1}


def test_another_setting_in_the_same_folder_is_refused(tmp_path: Path):
    run_all(compare.plan(["supervised"], 1, layers()), tmp_path)
    with pytest.raises(AggMatchError, match=r"optim\.lr was 0\.03, now 0\.1"):
        run_all(compare.plan(["supervised"], 1, layers(optim__lr=0.1)), tmp_path)


@pytest.mark.parametrize(
    ("key", "advice"), [("method.name", "--methods"), ("data.fold", "--folds N"), ("data.split", "train --split FILE")]
)
def test_what_sets_the_runs_apart_cannot_be_set(key, advice):
    with pytest.raises(
        AggMatchError, match=rf"{key} cannot be set for a comparison, .* \(from the file\)\. .*{advice}"
    ):
        compare.plan(["supervised"], 2, [*layers(), Layer("the file", {"train.batch": 5, key: "9"})])


def test_an_unknown_method_stops_before_anything_is_trained(tmp_path: Path):
    with pytest.raises(AggMatchError, match="Unknown method 'nonsense'"):
        compare.plan(["supervised", "nonsense"], 3, layers())


def test_labels_that_cannot_be_drawn_are_refused_before_anything_is_trained(tmp_path: Path):
    runs = compare.place(compare.plan(["supervised", "paws"], 1, layers(data__labels=15)), tmp_path)
    with pytest.raises(AggMatchError, match=r"data\.labels must be a multiple of 10"):
        compare.check(runs)
    assert not list(tmp_path.iterdir())


def test_methods_that_the_data_do_not_allow_are_known_before_anything_is_trained(tmp_path: Path):
    runs = compare.place(compare.plan(["supervised", "paws"], 2, layers(train__batch=15)), tmp_path)
    (unfit,) = compare.check(runs).items()
    assert unfit[0] == "paws"
    assert unfit[1].startswith("train.batch must be a multiple of 10")
    assert not list(tmp_path.iterdir())


def test_a_comparison_that_is_finished_needs_no_data(tmp_path: Path, monkeypatch):
    plan = compare.plan(["supervised"], 1, layers())
    run_all(plan, tmp_path)
    monkeypatch.setattr(compare, "load_for", None)
    assert compare.check(compare.place(plan, tmp_path)) == {}
