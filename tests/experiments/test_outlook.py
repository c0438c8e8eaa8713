from aggmatch.config import Layer
from aggmatch.experiments import outlook as module
from aggmatch.experiments.outlook import PART, WHOLE, StepPace, find_paces, kind, measure, outlook
from aggmatch.training.settings import resolve


def settings(**changes):
    return resolve([Layer("the test", {key.replace("__", "."): value for key, value in changes.items()})])


def quiet(line: str) -> None:
    pass


def test_runs_that_differ_in_what_takes_no_time_are_of_one_kind():
    first = settings(data__name="cifar10", data__labels=40)
    same = settings(data__name="svhn", data__labels=250, data__fold=2, train__steps=7, train__seed=1)
    assert kind(first) == kind(same)
    for other in ({"train__batch": 32}, {"model__name": "small-4"}, {"method__slots": 512}, {"method__name": "uda"}):
        assert kind(first) != kind(settings(data__name="cifar10", **other))
    assert kind(first) != kind(settings(data__name="cifar100", model__name="wrn-28-2", train__batch=64))


def test_the_pace_of_a_run_in_the_folder_is_taken_from_its_clock(plan, pretend, monkeypatch):
    monkeypatch.setattr(module, "measure", lambda settings: StepPace(9.0, WHOLE))
    made = plan()
    pretend(made.runs[0], 50.0)
    paces = find_paces(made.runs, quiet)
    assert paces[kind(made.runs[0].settings)].seconds == (7.0 - 3.0) / (4 - 2)
    assert "folder" in paces[kind(made.runs[0].settings)].origin
    assert paces[kind(made.runs[-1].settings)] == StepPace(9.0, WHOLE)
    assert len(paces) == 2


def test_each_kind_is_measured_once_and_finished_ones_not_at_all(plan, pretend, monkeypatch):
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


def test_measuring_can_be_stopped_and_what_was_measured_is_kept(plan, monkeypatch):
    paces = iter([StepPace(1.0, WHOLE)])

    def interrupted(settings):
        try:
            return next(paces)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(module, "measure", interrupted)
    said: list[str] = []
    assert len(find_paces(plan().runs, said.append)) == 1
    assert said[0].startswith("Measuring a step of supervised with small-4 (1 of 2; Ctrl-C")
    assert said[-1] == "Measuring was stopped."


def test_a_quick_step_is_measured_whole(plan):
    pace = measure(plan().runs[0].settings)
    assert pace.origin == WHOLE
    assert 0 < pace.seconds < 1


def test_a_slow_step_is_measured_on_a_part_of_its_batch(plan, monkeypatch):
    batches = []

    def slow(settings, device, *, warm, steps):
        batches.append(settings.train.batch)
        return 2.0 * settings.train.batch

    monkeypatch.setattr(module, "time_steps", slow)
    assert measure(settings(data__name="cifar10", train__batch=64)) == StepPace(128.0, PART)
    assert measure(settings(data__name="cifar10", method__name="paws", train__batch=200)) == StepPace(400.0, PART)
    assert batches == [4, 20], "a balanced batch has every class in it"


def test_the_outlook_lists_every_run_with_its_state_and_sums_up(plan, pretend):
    made = plan(folds=1)
    pretend(made.runs[0], 50.0)
    pretend(made.runs[2], 50.0, step=3)
    paces = {
        kind(made.runs[0].settings): StepPace(100.0, "a guess"),
        kind(made.runs[2].settings): StepPace(7200.0, "a clock"),
    }
    table = outlook(made, paces)
    assert list(table.columns) == ["data", "labels", "method", "fold", "steps", "state", "about"]
    assert [list(row) for row in table.rows] == [
        ["digits", 10, "supervised", 0, 4, "finished", None],
        ["digits", 20, "supervised", 0, 4, "missing", "6 min 40 s"],
        ["digits", 10, "fixmatch", 0, 4, "at step 3", "2 h 0 min"],
        ["digits", 20, "fixmatch", 0, 4, "missing", "8 h 0 min"],
    ]
    assert table.notes[0] == "3 of 4 runs to train, 9 steps."
    assert table.notes[1].startswith("About 10 h one after the other on ")
    assert list(table.notes[2:]) == ["- a guess (1 run)", "- a clock (2 runs)"]


def test_runs_without_a_pace_are_counted_out(plan):
    made = plan(folds=1)
    table = outlook(made, {kind(made.runs[0].settings): StepPace(1.0, "a guess")})
    assert "2 runs whose step was not measured left out" in table.notes[1]
    assert "about" not in outlook(made, {}).columns
    assert outlook(made, {}).notes == ["4 of 4 runs to train, 16 steps."]


def test_nothing_left_is_said_in_one_sentence(plan, pretend):
    made = plan()
    for run in made.runs:
        pretend(run, 50.0)
    assert outlook(made, {}).notes == ["Nothing is left to train: 8 runs finished."]
