import pytest

from aggmatch.config import Layer
from aggmatch.data import SOURCES
from aggmatch.errors import AggMatchError
from aggmatch.experiments import reproduce
from aggmatch.experiments.paper import TABLES, PaperTable, grid, method, on
from aggmatch.experiments.planned import PlannedRun, collect
from aggmatch.experiments.reproduce import joined, narrow, require_data


def test_narrowing_keeps_the_cells_that_have_one_of_the_wanted_values():
    table = narrow(TABLES["main"], {"method.name": ["fixmatch", "aggmatch"], "data.name": ["cifar10"]})
    assert table.rows == ["FixMatch", "AggMatch"]
    assert table.columns == ["CIFAR-10, 40", "CIFAR-10, 80", "CIFAR-10, 250"]
    assert narrow(table, {"data.labels": [40, 250]}).columns == ["CIFAR-10, 40", "CIFAR-10, 250"]
    assert narrow(table, {}) == table


def test_the_error_for_a_value_that_a_table_lacks_names_those_that_it_has():
    with pytest.raises(AggMatchError, match=r"data\.labels 41.* 40, 80, 250, 400"):
        narrow(TABLES["main"], {"data.labels": [40, 41]})


def test_values_that_do_not_occur_together_are_named():
    wanted: dict[str, list[object]] = {"data.name": ["cifar100"], "data.labels": [40]}
    with pytest.raises(AggMatchError, match=r"data\.name cifar100 and data\.labels 40"):
        narrow(TABLES["main"], wanted)


def test_a_plan_has_a_run_for_each_fold_of_each_cell(plan, tmp_path):
    runs = plan().runs
    assert len(runs) == 2 * 2 * 2
    chosen = [(run.settings.method_name, run.settings.data.labels, run.settings.data.fold) for run in runs]
    assert chosen[:3] == [("supervised", 10, 0), ("supervised", 10, 1), ("supervised", 20, 0)]
    assert all(run.settings.train.steps == 4 for run in runs)
    assert all(run.settings.model.name == "small-4" for run in runs)
    assert {run.path.parent for run in runs} == {tmp_path / "runs"}
    assert len(plan(folds=3).runs) == 12


def test_the_steps_of_the_paper_are_the_default(tmp_path):
    (run, *_) = reproduce.plan(TABLES["queue"], [], tmp_path).runs
    assert run.settings.train.steps == 2**20


def test_a_run_in_several_cells_or_tables_is_trained_once(plan, tmp_path, tiny):
    twice = PaperTable(
        "twice",
        "",
        grid({"a": on("digits", 10, "supervised"), "b": on("digits", 10, "supervised")}, {"x": ({}, "1 2")}),
    )
    made = plan(twice, folds=1, train__steps=4)
    assert len(made.cells) == 2
    assert len(made.runs) == 1
    assert made.runs[0].path == plan(tiny).runs[0].path


def test_a_run_in_a_folder_of_another_name_is_used(plan, pretend, tmp_path):
    run = plan().runs[0]
    elsewhere = run.path.with_name(run.path.name[:-6] + "000000")
    pretend(PlannedRun(run.settings, elsewhere, ""), 50.0)
    assert plan().runs[0].path == elsewhere
    assert plan().runs[0].finished


@pytest.mark.parametrize("key", ["method.slots", "data.name", "data.fold", "data.split"])
def test_settings_that_distinguish_the_cells_cannot_be_set(tmp_path, key):
    with pytest.raises(AggMatchError, match=rf"{key} .*from --set {key}=512"):
        reproduce.plan(TABLES["queue"], [Layer(f"--set {key}=512", {key: 512})], tmp_path)


def test_a_setting_that_a_method_does_not_have_names_the_row(tmp_path):
    with pytest.raises(AggMatchError, match=r"Pseudo-Label: .*method\.slots"):
        reproduce.plan(TABLES["main"], [Layer("--set", {"method.slots": 512})], tmp_path)


def test_a_variant_names_the_settings_other_than_method_and_data(plan, tmp_path):
    made = reproduce.plan(TABLES["components"], [], tmp_path, folds=1)
    assert [made.variant(run) for run in made.runs][:2] == [
        "confidence off, refine false",
        "confidence weighting, refine false",
    ]
    assert plan().variant(plan().runs[0]) == ""


def test_missing_data_is_named_before_anything_starts(tmp_path):
    table = narrow(TABLES["main"], {"method.name": ["fixmatch"]})
    layers = [Layer("--data-dir", {"runtime.data_dir": str(tmp_path)})]
    runs = reproduce.plan(table, layers, tmp_path / "runs").runs
    with pytest.raises(AggMatchError) as caught:
        require_data(runs, download=False)
    size = sum(archive.size for name in ("cifar10", "cifar100", "svhn") for archive in SOURCES.load(name).archives)
    assert f"cifar10, cifar100 and svhn are not in {tmp_path}" in str(caught.value)
    assert f"--download to fetch {size / 1e6:.0f} MB" in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_the_error_for_missing_data_names_the_data_that_is_there(plan, tmp_path):
    table = PaperTable("mixed", "", grid({"a": on("digits", 10), "b": on("svhn", 10)}, {"x": (method("uda"), "1 2")}))
    runs = plan(table, runtime__data_dir=str(tmp_path)).runs
    with pytest.raises(AggMatchError, match="svhn is not in .* --data digits"):
        require_data(runs, download=False)


def test_data_of_finished_runs_is_not_needed(plan, pretend, tmp_path):
    table = PaperTable("one", "", grid({"a": on("svhn", 10)}, {"x": (method("uda"), "1")}), folds=1)
    made = plan(table, runtime__data_dir=str(tmp_path))
    pretend(made.runs[0], 50.0)
    require_data(made.runs, download=False)


def test_a_download_fetches_what_is_missing_and_nothing_else(plan, tmp_path, monkeypatch):
    table = PaperTable("mixed", "", grid({"a": on("digits", 10), "b": on("svhn", 10)}, {"x": (method("uda"), "1 2")}))
    fetched = []
    monkeypatch.setattr(reproduce, "fetch", lambda archive, folder: fetched.append((archive, folder)))
    first, second = SOURCES.load("svhn").archives
    (tmp_path / second.file).touch()
    require_data(plan(table, runtime__data_dir=str(tmp_path)).runs, download=True)
    assert fetched == [(first, tmp_path)]


def test_the_runs_that_were_started_are_read(plan, pretend):
    made = plan()
    pretend(made.runs[0], 50.0)
    pretend(made.runs[3], 40.0, step=2)
    assert [(run.finished, run.steps) for run in collect(made.runs)] == [(True, 4), (False, 2)]


@pytest.mark.parametrize(("words", "text"), [(["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")])
def test_words_are_joined_as_in_a_sentence(words, text):
    assert joined(words, "or") == text
