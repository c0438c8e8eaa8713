import csv
import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conftest import dotted

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.experiments import compare
from aggmatch.experiments.engines.local import InTurn
from aggmatch.experiments.planned import collect
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import resolve

QUICK = {"model.name": "small-4", "train.steps": 6, "train.batch": 10, "train.unlabeled_ratio": 2}


def layers(**changes):
    return [Layer("the test", QUICK | dotted(changes))]


def train(run, title):
    for _ in run.train():
        pass


def run_all(plan, out, follow=train):
    """Checks, trains and reads the runs of a plan."""
    runs = compare.place(plan, out)
    compare.find_misfits(runs)
    assert not list(InTurn(follow).train(runs, quiet=True))
    return collect(runs)


def finished(method, fold, accuracy, data="digits", **changes):
    """A finished run, as a results file holds it."""
    chosen = {
        "method.name": method,
        "data.name": data,
        "data.labels": 10,
        "data.fold": fold,
        "train.steps": 6,
    } | changes
    summary = {"accuracy": accuracy, "seconds": 2.0}
    return StoredRun(settings=resolve(chosen), records=[], summary=summary, steps=6, hardware="a CPU", versions=None)


def test_the_table_has_mean_and_sample_deviation_with_the_best_method_first():
    accuracies = {("uda", 0): 50.0, ("uda", 1): 54.0, ("fixmatch", 0): 90.0, ("fixmatch", 1): 91.0}
    table = compare.compare([finished(*run, accuracy) for run, accuracy in accuracies.items()])
    assert [row[0] for row in table.rows] == ["fixmatch", "uda"]
    assert list(table.rows[1][1:6]) == [52.0, pytest.approx(statistics.stdev([50, 54])), 2, 50.0, 54.0]
    assert table.title.startswith("digits, 10 labels, 6 steps, paper recipe, test accuracy of the average network")


def test_recipes_that_differ_have_a_column_for_readers_and_recipes_always_have_one_in_files(tmp_path: Path):
    mixed = [with_probes(finished("aggmatch", 0, 90.0), LabelSpreading=95.0), finished("uda", 0, 50.0)]
    table = compare.compare(mixed)
    assert [row[:3] for row in table.rows] == [
        ["LabelSpreading (frozen features)", None, 95.0],
        ["aggmatch", "neighbours", 90.0],
        ["uda", "paper", 50.0],
    ]
    assert table.columns[:3] == ["method", "recipe", "accuracy %"]
    assert "recipe" not in table.title
    assert compare.simpler(table) == "LabelSpreading"
    for runs, heading in ((mixed, "| method | recipe |"), (mixed[1:], "| method | accuracy % |")):
        compare.write(runs, tmp_path)
        rows = list(csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines()))
        assert (rows[-1]["method"], rows[-1]["recipe"]) == ("uda", "paper")
        assert json.loads((tmp_path / "comparison.json").read_text())[-1]["recipe"] == "paper"
        assert heading in (tmp_path / "comparison.md").read_text()
    assert "paper recipe" in (tmp_path / "comparison.md").read_text().splitlines()[0]


def test_one_method_with_two_recipes_has_two_rows():
    paper, cold = (finished("fixmatch", 0, 50.0, recipe=name) for name in ("paper", "cold-start"))
    assert [row[:2] for row in compare.compare([paper, cold]).rows] == [
        ["fixmatch", "paper"],
        ["fixmatch", "cold-start"],
    ]


def test_the_title_names_a_folder_by_the_last_part_of_its_path():
    table = compare.compare([finished("uda", 0, 50.0, data="/home/me/photos")])
    assert table.title.startswith("photos, 10 labels, ")


def with_probes(run, **accuracies):
    """The run with the accuracies of classic learners on its features."""
    return replace(run, summary={**run.summary, "probes": accuracies})


def test_classic_learners_on_the_same_features_have_rows_of_their_own():
    runs = [with_probes(finished("uda", fold, 50.0), LabelSpreading=40.0 + fold) for fold in (0, 1)]
    table = compare.compare(runs)
    assert [row[0] for row in table.rows] == ["uda", "LabelSpreading (frozen features)"]
    assert list(table.rows[1][3:]) == [2, 40.0, 41.0, None]
    assert not list(compare.remarks(runs, table))


def test_a_classic_learner_that_is_best_is_recommended():
    for accuracy in (60.0, 50.0):  # also if it is as good as the best method
        runs = [with_probes(finished("uda", 0, 50.0), LabelSpreading=accuracy)]
        (remark,) = compare.remarks(runs, compare.compare(runs))
        assert "LabelSpreading" in remark
    assert with_probes(finished("uda", 0, 50.0), LabelSpreading=60.0).better_probe == "LabelSpreading"
    assert with_probes(finished("uda", 0, 50.0), LabelSpreading=40.0).better_probe is None


def test_a_few_test_images_recommend_nothing(tmp_path: Path):
    best = with_probes(finished("uda", 0, 50.0), LabelSpreading=60.0)
    for images, count in ((10, 0), (100, 1)):
        folder = tmp_path / str(images)
        folder.mkdir()
        split = {"format": 1, "data": "photos", "classes": 2, "fold": 0, "images": 4, "labeled": [0], "labels": [0]}
        split |= {"unlabeled": "all", "test_images": [f"{k:032x}" for k in range(images)]}
        (folder / "split.json").write_text(json.dumps(split))
        runs = [replace(best, path=folder)]
        assert len(list(compare.remarks(runs, compare.compare(runs)))) == count


def test_a_remark_says_if_all_folds_have_the_same_labels(tmp_path: Path):
    for labels, count in ((None, 1), (20, 0)):
        runs = run_all(compare.plan(["supervised"], 2, layers(data__labels=labels)), tmp_path / str(labels))
        remarks = list(compare.remarks(runs, compare.compare(runs)))
        assert len(remarks) == count
        assert all("--labels N" in remark for remark in remarks)


def test_one_fold_has_no_deviation():
    assert compare.compare([finished("uda", 0, 50.0)]).rows[0][2] is None


def test_a_missing_fold_is_an_empty_cell_and_does_not_count():
    runs = [finished("uda", 1, 54.0), finished("fixmatch", 0, 90.0), finished("fixmatch", 1, 91.0)]
    table = compare.compare([*runs, replace(finished("uda", 0, 50.0), summary=None)])
    assert table.columns == ["method", "accuracy %", "± std", "n", "fold 0", "fold 1", "seconds"]
    assert list(table.rows[1]) == ["uda", 54.0, None, 1, None, 54.0, 2.0]


def test_without_a_finished_run_there_is_nothing_to_compare():
    with pytest.raises(AggMatchError, match="no run finished"):
        compare.compare([])


def test_a_method_from_a_file_gets_a_folder_by_its_short_name(tmp_path: Path):
    methods = [str(write_method(tmp_path / folder)) + ":Mine" for folder in ("a", "b")]
    (run,) = compare.place(compare.plan(methods[:1], 1, layers()), tmp_path / "out")
    assert run.path == tmp_path / "out/mine.Mine/fold0"
    with pytest.raises(AggMatchError, match=r"a/mine.py:Mine and .*b/mine.py:Mine would share"):
        compare.place(compare.plan(methods, 1, layers()), tmp_path / "out")


def write_method(folder: Path) -> Path:
    """Writes a file with a method of its own."""
    folder.mkdir()
    path = folder / "mine.py"
    path.write_text("from aggmatch.methods.supervised import Supervised\n\n\nclass Mine(Supervised):\n    pass\n")
    return path


def test_all_methods_train_on_the_same_folds(tmp_path: Path):
    runs = run_all(compare.plan(["supervised", "fixmatch"], 2, layers()), tmp_path)
    for fold in (0, 1):
        splits = [json.loads((tmp_path / m / f"fold{fold}/split.json").read_text()) for m in ("supervised", "fixmatch")]
        assert splits[0] == splits[1]
    compare.write(runs, tmp_path)
    rows = list(csv.DictReader((tmp_path / "comparison.csv").read_text().splitlines()))
    assert {row["method"] for row in rows} == {"supervised", "fixmatch"}
    objects = json.loads((tmp_path / "comparison.json").read_text())
    assert objects[0]["n"] == 2
    assert (tmp_path / "comparison.md").read_text().count("| supervised |") == 1


def test_a_comparison_resumes_where_it_stopped(tmp_path: Path):
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

    runs = run_all(plan, tmp_path, go_on)
    assert trained == ["supervised fold 0", "fixmatch fold 0", "fixmatch fold 0"]
    assert [(run.method, run.finished) for run in runs] == [("supervised", True), ("fixmatch", True)]


def test_a_folder_that_holds_a_run_of_other_settings_is_an_error(tmp_path: Path):
    run_all(compare.plan(["supervised"], 1, layers()), tmp_path)
    with pytest.raises(AggMatchError, match=r"optim\.lr"):
        run_all(compare.plan(["supervised"], 1, layers(optim__lr=0.1)), tmp_path)


@pytest.mark.parametrize(
    ("key", "advice"), [("method.name", "--methods"), ("data.fold", "--folds N"), ("data.split", "train --split FILE")]
)
def test_settings_that_distinguish_the_runs_cannot_be_set(key, advice):
    with pytest.raises(AggMatchError, match=rf"{key} .*from the file.*{advice}"):
        compare.plan(["supervised"], 2, [*layers(), Layer("the file", {"train.batch": 5, key: "9"})])


def test_an_unknown_method_stops_before_anything_is_trained(tmp_path: Path):
    with pytest.raises(AggMatchError, match="nonsense"):
        compare.plan(["supervised", "nonsense"], 3, layers())


def test_labels_that_cannot_be_drawn_are_an_error_before_anything_is_trained(tmp_path: Path):
    runs = compare.place(compare.plan(["supervised", "paws"], 1, layers(data__labels=15)), tmp_path)
    with pytest.raises(AggMatchError, match=r"data\.labels"):
        compare.find_misfits(runs)
    assert not list(tmp_path.iterdir())


def test_methods_that_the_data_do_not_suit_are_found_before_anything_is_trained(tmp_path: Path):
    noise = {"data__noise": "asymmetric", "data__noise_rate": 1.0, "data__noise_map": ["3>5"]}  # no label 3 is left
    runs = compare.place(compare.plan(["supervised", "paws"], 2, layers(**noise)), tmp_path)
    (unfit,) = compare.find_misfits(runs).items()
    assert unfit[0] == "paws"
    assert "No image has the label '3'" in unfit[1]
    assert not list(tmp_path.iterdir())


def test_a_comparison_that_is_finished_needs_no_data(tmp_path: Path, monkeypatch):
    plan = compare.plan(["supervised"], 1, layers())
    run_all(plan, tmp_path)
    monkeypatch.setattr("aggmatch.settings.load_for", None)
    assert compare.find_misfits(compare.place(plan, tmp_path)) == {}
