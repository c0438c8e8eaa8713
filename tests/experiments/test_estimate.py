from tests.conftest import dotted

from aggmatch.config import Layer
from aggmatch.experiments import estimate as module
from aggmatch.experiments import reproduce
from aggmatch.experiments.estimate import (
    GUESSED,
    PART,
    WHOLE,
    StepPace,
    estimate,
    find_paces,
    kind,
    list_runs,
    measure,
    work,
)
from aggmatch.experiments.paper import TABLES
from aggmatch.experiments.reproduce import narrow
from aggmatch.settings import RunSettings, resolve


def settings(**changes):
    chosen = {"recipe": "paper"} | dotted(changes)
    return resolve([Layer("the test", chosen)])


def quiet(line: str) -> None:
    pass


def test_runs_are_of_one_kind_if_their_steps_take_equally_long():
    first = settings(data__name="cifar10", data__labels=40)
    same = settings(data__name="svhn", data__labels=250, data__fold=2, train__steps=7, train__seed=1)
    assert kind(first) == kind(same)
    for other in ({"train__batch": 32}, {"model__name": "small-4"}, {"method__slots": 512}, {"method__name": "uda"}):
        assert kind(first) != kind(settings(data__name="cifar10", **other))
    assert kind(first) != kind(settings(data__name="cifar100", model__name="wrn-28-2", train__batch=64))


def test_the_pace_of_a_run_in_the_folder_is_taken_from_its_log(plan, pretend, monkeypatch):
    monkeypatch.setattr(module, "measure", lambda settings: StepPace(9.0, WHOLE))
    made = plan()
    pretend(made.runs[0], 50.0)
    paces = find_paces(made.runs, quiet)
    assert paces[kind(made.runs[0].settings)].seconds == (7.0 - 3.0) / (4 - 2)
    assert "folder" in paces[kind(made.runs[0].settings)].origin
    assert paces[kind(made.runs[-1].settings)] == StepPace(9.0, WHOLE)
    assert len(paces) == 2


def test_each_unfinished_kind_is_measured_once(plan, pretend, monkeypatch):
    measured = []

    def remember(settings):
        measured.append(settings.method_name)
        return StepPace(1.0, WHOLE)

    monkeypatch.setattr(module, "measure", remember)
    made = plan(folds=1)
    for run in made.runs[:2]:
        pretend(run, 50.0)
        run.folder.metrics.write_text("")
    find_paces(made.runs, quiet)
    assert measured == ["fixmatch"]


def test_measuring_can_be_interrupted_and_keeps_what_was_measured(plan, monkeypatch):
    paces = iter([StepPace(1.0, WHOLE)])

    def interrupted(settings):
        try:
            return next(paces)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(module, "measure", interrupted)
    said: list[str] = []
    runs = plan().runs
    found = find_paces(runs, said.append)
    assert said[0].startswith("Measuring a step of supervised with small-4 (1 of 2")
    assert said[-1] == "Measuring was stopped."
    assert found[kind(runs[0].settings)] == StepPace(1.0, WHOLE)
    assert found[kind(runs[-1].settings)].origin == GUESSED


def test_without_any_measurement_there_is_no_pace(plan, monkeypatch):
    def interrupted(settings):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "measure", interrupted)
    assert find_paces(plan().runs, quiet) == {}


def test_work_grows_with_the_network_the_batch_and_the_views():
    small = work(settings(data__name="cifar10", method__name="supervised"))
    assert work(settings(data__name="cifar10", method__name="supervised", train__batch=128)) == 2 * small
    assert work(settings(data__name="cifar10", method__name="fixmatch")) == (1 + 2 * 7) * small
    wide = work(settings(data__name="cifar10", method__name="supervised", model__name="wrn-28-8"))
    assert 15 < wide / small < 17


def test_kinds_for_which_no_time_is_left_are_guessed_by_their_work(monkeypatch, tmp_path):
    made = reproduce.plan(narrow(TABLES["main"], {"data.labels": [400]}), [], tmp_path, folds=1)
    clock = iter(range(0, 1000, 20))
    monkeypatch.setattr("time.monotonic", lambda: float(next(clock)))
    measured: list[RunSettings] = []

    def remember(settings):
        measured.append(settings)
        return StepPace(10.0, WHOLE)

    monkeypatch.setattr(module, "measure", remember)
    said: list[str] = []
    paces = find_paces(made.runs, said.append)
    works = {kind(run.settings): work(run.settings) for run in made.runs}
    assert len(paces) == len(works) == 9
    assert works[kind(measured[0])] == min(works.values()), "light ones come first"
    assert said[-1] == f"{9 - len(measured)} of 9 kinds of runs are guessed from the others."
    assert 0 < len(measured) < 4
    heaviest = max(works, key=works.__getitem__)
    nearest = max(works[kind(own)] for own in measured)
    assert paces[heaviest] == StepPace(10.0 * works[heaviest] / nearest, GUESSED)


def test_a_quick_step_is_measured_whole(plan):
    pace = measure(plan().runs[0].settings)
    assert pace.origin == WHOLE
    assert 0 < pace.seconds < 1


def test_a_slow_step_is_measured_on_a_part_of_its_batch(plan, monkeypatch):
    batches = []

    def slow(settings, data, split, device, *, warm, steps):
        batches.append(settings.train.batch)
        return 2.0 * settings.train.batch

    monkeypatch.setattr(module, "time_steps", slow)
    assert measure(settings(data__name="cifar10", train__batch=64)) == StepPace(128.0, PART)
    assert measure(settings(data__name="cifar10", method__name="paws", train__batch=200)) == StepPace(400.0, PART)
    assert batches == [4, 20], "a balanced batch has every class in it"


def test_the_list_of_runs_has_every_state_and_the_sum(plan, pretend):
    made = plan(folds=1)
    pretend(made.runs[0], 50.0)
    pretend(made.runs[2], 50.0, step=3)
    paces = {
        kind(made.runs[0].settings): StepPace(100.0, "a guess"),
        kind(made.runs[2].settings): StepPace(0.0125, "a clock"),
    }
    table = list_runs(made)
    assert list(table.columns) == ["data", "labels", "method", "fold", "steps", "state"]
    assert [list(row) for row in table.rows] == [
        ["digits", 10, "supervised", 0, 4, "finished"],
        ["digits", 20, "supervised", 0, 4, "missing"],
        ["digits", 10, "fixmatch", 0, 4, "at step 3"],
        ["digits", 20, "fixmatch", 0, 4, "missing"],
    ]
    assert table.notes == ["3 of 4 runs to train, 9 steps."]
    times = estimate(made, paces)
    assert list(times.columns) == ["method", "model", "data", "runs", "a step", "about"]
    assert [list(row) for row in times.rows] == [
        ["supervised", "small-4", "digits", 1, "100.0 s", "6 min 40 s"],
        ["fixmatch", "small-4", "digits", 2, "12.5 ms", "0 s"],
    ]
    assert times.notes[0].startswith("About 6 min 40 s one after the other on ")
    assert list(times.notes[1:]) == ["- a guess (1 run)", "- a clock (2 runs)"]


def test_the_gain_of_parallel_runs_is_called_unknown(plan):
    made = plan(folds=1)
    paces = {kind(run.settings): StepPace(1.0, "a guess") for run in made.runs}
    assert "--at-once 2" in estimate(made, paces, 2).notes[0]
    assert "at-once" not in estimate(made, paces).notes[0]


def test_variants_of_a_method_are_named(tmp_path):
    made = reproduce.plan(TABLES["components"], [], tmp_path, folds=1)
    paces = {kind(run.settings): StepPace(1.0, "a guess") for run in made.runs}
    assert list_runs(made).rows[0][4] == estimate(made, paces).rows[0][3] == "confidence off, refine false"


def test_if_all_runs_are_finished_a_sentence_says_so(plan, pretend):
    made = plan()
    for run in made.runs:
        pretend(run, 50.0)
    assert list_runs(made).notes == ["Nothing is left to train: 8 runs finished."]
