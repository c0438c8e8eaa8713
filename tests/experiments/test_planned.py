import hashlib
import json
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path

import pytest
from tests.conftest import dotted

from aggmatch.config import Layer, Settings
from aggmatch.errors import AggMatchError
from aggmatch.experiments.planned import PlannedRun, changed_values, find_folder, folder_name
from aggmatch.settings import resolve


def settings(**changes):
    values = {"data.labels": 20, "method.name": "fixmatch"}
    return resolve([Layer("the test", values | dotted(changes))])


def test_the_name_of_a_folder_tells_data_labels_method_and_fold_and_ends_in_a_digest():
    name, _, digest = folder_name(settings(data__fold=2)).rpartition("-")
    assert name == "digits-20-fixmatch-fold2"
    assert len(digest) == 6


def test_the_name_depends_on_everything_that_decides_the_result_and_on_nothing_else():
    assert folder_name(settings()) == folder_name(settings(runtime__device="cpu", runtime__checkpoint_every=7))
    assert folder_name(settings()) != folder_name(settings(optim__lr=0.02))
    assert folder_name(settings()) != folder_name(settings(train__steps=7))


def test_a_name_stays_the_same_from_version_to_version():
    assert folder_name(settings(data__name="cifar10")) == "cifar10-20-fixmatch-fold0-a3b031"


def test_a_new_setting_at_its_default_changes_no_name():
    @dataclass(frozen=True, kw_only=True)
    class Inner(Settings):
        rate: float = 0.5
        names: tuple[str, ...] = ("a",)

    @dataclass(frozen=True, kw_only=True)
    class Before(Settings):
        name: str
        inner: Inner = field(default_factory=Inner)

    after = make_dataclass("after", [("new", int, field(default=3))], bases=(Before,), frozen=True, kw_only=True)
    for values in ({"name": "x"}, {"name": "x", "inner": Inner(rate=0.1)}):
        assert changed_values(Before(**values)) == changed_values(after(**values))
    assert changed_values(Before(name="x", inner=Inner(rate=0.1))) == {"name": "x", "inner": {"rate": 0.1}}
    assert changed_values(after(name="x", new=4)) == {"name": "x", "new": 4}


def old_name(own):
    """The folder name of version 0.1: a digest of all settings except `runtime`."""
    digest = hashlib.blake2b(json.dumps(own.identity(), sort_keys=True).encode(), digest_size=3).hexdigest()
    return f"digits-20-fixmatch-fold0-{digest}"


def test_a_run_in_a_folder_of_the_old_name_is_found_and_used(tmp_path: Path, pretend):
    own, other = settings(), settings(optim__lr=0.5)
    assert find_folder(own, tmp_path) == tmp_path / folder_name(own)
    for stored in (own, other):
        pretend(PlannedRun(stored, tmp_path / old_name(stored), ""), 60.0)
    (tmp_path / "digits-20-fixmatch-fold0-corrupt").mkdir()
    (tmp_path / "digits-20-fixmatch-fold0-corrupt/config.json").write_text("{")
    assert old_name(own) != folder_name(own)
    assert find_folder(own, tmp_path) == tmp_path / old_name(own)
    assert find_folder(other, tmp_path) == tmp_path / old_name(other)
    assert find_folder(settings(optim__lr=0.1), tmp_path) == tmp_path / folder_name(settings(optim__lr=0.1))
    assert PlannedRun(own, find_folder(own, tmp_path), "").finished


def test_a_run_in_a_folder_from_before_a_setting_existed_is_found(tmp_path: Path, pretend):
    run = PlannedRun(settings(), tmp_path / old_name(settings()), "")
    pretend(run, 60.0)
    config = run.folder.read_config()
    del config["views"]["weak"]
    run.folder.write_json(run.folder.config, config)
    assert find_folder(settings(), tmp_path) == run.path


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


def test_an_interrupted_run_resumes_from_its_checkpoint(plan, follow):
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


def test_a_folder_with_a_finished_run_of_other_settings_is_an_error(plan, pretend, follow):
    run = plan().runs[0]
    pretend(run, 60.0)
    other = PlannedRun(plan(optim__lr=0.5).runs[0].settings, run.path, "other")
    with pytest.raises(AggMatchError, match=r"optim\.lr"):
        other.complete(follow)


def test_a_planned_run_survives_a_journey_as_json(plan, monkeypatch):
    run = plan().runs[0]
    values = json.loads(json.dumps(run.to_dict()))
    monkeypatch.chdir("/")
    back = PlannedRun.from_dict(values)
    assert (back.path, back.title) == (run.path, run.title)
    assert back.settings.identity() == run.settings.identity()
    assert Path(back.settings.runtime.data_dir).is_absolute()
