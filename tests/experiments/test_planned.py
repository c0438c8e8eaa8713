import pytest

from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import PlannedRun, readable_name, train_in_turn
from aggmatch.settings import resolve


def settings(**changes):
    values = {"data.labels": 20, "method.name": "fixmatch"}
    return resolve([Layer("the test", values | {key.replace("__", "."): value for key, value in changes.items()})])


def test_a_folder_is_named_after_what_a_reader_wants_to_know_and_a_digest():
    name, _, digest = readable_name(settings(data__fold=2)).rpartition("-")
    assert name == "digits-20-fixmatch-fold2"
    assert len(digest) == 6


def test_the_name_depends_on_all_that_decides_the_result_and_on_nothing_else():
    assert readable_name(settings()) == readable_name(settings(runtime__device="cpu", runtime__checkpoint_every=7))
    assert readable_name(settings()) != readable_name(settings(optim__lr=0.02))
    assert readable_name(settings()) != readable_name(settings(train__steps=7))


def test_a_run_is_missing_then_at_a_step_then_finished(plan, pretend):
    missing, begun, finished, _ = plan().runs[:4]
    pretend(begun, 50.0, step=2)
    pretend(finished, 60.0)
    assert [run.state for run in (missing, begun, finished)] == ["missing", "at step 2", "finished"]
    assert [run.steps_done for run in (missing, begun, finished)] == [0, 2, 4]


def test_a_finished_run_is_not_touched_and_needs_no_data(plan, pretend, follow):
    run = plan().runs[0]
    pretend(run, 60.0)
    before = sorted(run.path.rglob("*"))
    run.complete(follow)
    assert follow.titles == []
    assert sorted(run.path.rglob("*")) == before


def test_a_run_that_was_broken_off_goes_on_from_its_checkpoint(plan, follow):
    run = plan().runs[0]

    def break_off(training, title):
        for record in training.train():
            if record["step"] == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.complete(break_off)
    assert run.state == "at step 2"
    steps: list[int] = []
    run.complete(lambda training, title: steps.extend(record["step"] for record in training.train()))
    assert steps == [4]
    assert run.state == "finished"


def test_a_folder_with_a_finished_run_of_other_settings_is_refused(plan, pretend, follow):
    run = plan().runs[0]
    pretend(run, 60.0)
    other = PlannedRun(plan(optim__lr=0.5).runs[0].settings, run.path, "other")
    with pytest.raises(AggMatchError, match=r"Cannot resume .*: optim.lr was 0.03, now 0.5"):
        other.complete(follow)


def test_a_run_that_fails_leaves_the_others_alone(plan, follow):
    runs = plan(folds=1).runs
    for run in runs[:2]:
        run.path.mkdir(parents=True)
        (run.path / "something").touch()
    failures = list(train_in_turn(runs, follow))
    assert [failure.run.title for failure in failures] == [run.title for run in runs[:2]]
    assert "is not empty and holds no run" in failures[0].reason
    assert [run.finished for run in runs] == [False, False, True, True]
