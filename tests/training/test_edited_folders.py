"""A run never continues with another configuration or split than its checkpoint knows, and no result is edited."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.runs.checkpoint import found, pack, save, unpack
from aggmatch.runs.folder import CHANGEABLE, RunFolder
from aggmatch.runs.stored import read_run
from aggmatch.settings import resolve
from aggmatch.storage.files import sealed
from aggmatch.training.begin import resume, start

QUICK = {
    "data.name": "digits",
    "method.name": "supervised",
    "model.name": "small-4",
    "train.steps": 4,
    "train.batch": 10,
    "train.log_every": 1,
    "runtime.snapshots": [],
    "runtime.checkpoint_every": 2,
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A folder with the runs `finished` and `halfway`."""
    place = tmp_path_factory.mktemp("runs")
    list(start(resolve(QUICK), place / "finished").train())
    records = start(resolve(QUICK), place / "halfway").train()
    assert [next(records)["step"] for _ in range(3)] == [1, 2, 3]
    del records
    return place


@pytest.fixture
def halfway(runs, tmp_path) -> RunFolder:
    return RunFolder(shutil.copytree(runs / "halfway", tmp_path / "halfway"))


@pytest.fixture
def finished(runs, tmp_path) -> RunFolder:
    return RunFolder(shutil.copytree(runs / "finished", tmp_path / "finished"))


def edit(path: Path, section: str | None = None, **changes: Any) -> None:
    """Change entries of a JSON file, as an editor does."""
    content = json.loads(path.read_text())
    (content[section] if section else content).update(changes)
    path.write_text(json.dumps(content))


def reseal(path: Path, without: tuple[str, ...] = ()) -> None:
    """Make a digest match its edited file, as somebody who knows the format can."""
    path.write_text(json.dumps(sealed(json.loads(path.read_text()), without)))


@pytest.mark.parametrize("how", ["with its old digest", "without a digest", "with a new digest"])
@pytest.mark.parametrize(
    ("section", "changes", "key"),
    [
        ("optim", {"lr": 0.5}, "optim.lr was 0.03, now 0.5"),
        ("train", {"steps": 3}, "train.steps was 4, now 3"),
        ("train", {"seed": 1}, "train.seed was 0, now 1"),
        ("method", {"name": "fixmatch"}, "method.name was 'supervised', now 'fixmatch'"),
        ("data", {"name": "mnist"}, "data.name was 'digits', now 'mnist'"),
    ],
)
def test_a_run_is_not_resumed_after_an_edit_of_its_configuration(halfway, section, changes, key, how):
    edit(halfway.config, section, **changes)
    if how == "with a new digest":
        reseal(halfway.config, CHANGEABLE)
    elif how == "without a digest":
        content = json.loads(halfway.config.read_text())
        del content["digest"]
        halfway.config.write_text(json.dumps(content))
    with pytest.raises(AggMatchError) as error:
        resume(halfway.path)
    assert f"Cannot resume {halfway.path}: {key}" in str(error.value)
    assert str(halfway.config) in str(error.value)


@pytest.mark.parametrize(
    ("change", "part"), [({"labels": [0] * 10}, "labels"), ({"fold": 1}, "fold"), ({"unlabeled": [1, 2]}, "unlabeled")]
)
def test_a_run_is_not_resumed_after_an_edit_of_its_split(halfway, change, part):
    edit(halfway.split, **change)
    for _ in range(2):
        with pytest.raises(AggMatchError, match=rf"Cannot resume .*: {part} in .*split\.json changed since"):
            resume(halfway.path)
        reseal(halfway.split)


def test_section_runtime_may_be_edited(halfway):
    edit(halfway.config, "runtime", checkpoint_every=1)
    run = resume(halfway.path)
    list(run.train())
    assert run.finished


def test_an_edited_configuration_is_no_longer_read(finished):
    edit(finished.config, "optim", lr=0.5)
    with pytest.raises(AggMatchError, match=r"config\.json was changed after its run was started"):
        read_run(finished.path)


@pytest.mark.parametrize(("old", "new"), [('"accuracy": ', '"accuracy": 1'), ('"digest"', '"dihest"')])
def test_an_edited_result_is_no_longer_read(finished, old, new):
    content = finished.summary.read_text()
    finished.summary.write_text(content.replace(old, new))
    assert finished.summary.read_text() != content
    with pytest.raises(
        AggMatchError, match=r"summary\.json(: accuracy must be| was changed after the run was finished)"
    ):
        read_run(finished.path)


@pytest.mark.parametrize("left", [0, 1, 3])
def test_a_shortened_log_of_a_finished_run_is_detected(finished, left):
    lines = finished.metrics.read_bytes().splitlines(keepends=True)
    assert len(lines) == 4
    finished.metrics.write_bytes(b"".join(lines[:left]))
    with pytest.raises(AggMatchError, match=r"metrics\.jsonl was changed after the run was finished"):
        read_run(finished.path)


def test_a_changed_number_in_the_log_of_an_unfinished_run_is_detected(halfway):
    content = halfway.metrics.read_text()
    halfway.metrics.write_text(content.replace('"loss": 2', '"loss": 1', 1))
    assert halfway.metrics.read_text() != content
    with pytest.raises(AggMatchError, match=r"metrics\.jsonl, line \d: it is corrupt"):
        read_run(halfway.path)


def test_a_checkpoint_without_the_configuration_still_resumes(halfway):
    (path,) = found(halfway.checkpoints)
    old = unpack(path.read_bytes())
    facts = {name: value for name, value in old.facts.items() if name not in ("configuration", "split")}
    path.unlink()
    save(halfway.checkpoints, 2, type(old)(old.tensors, facts))
    run = resume(halfway.path)
    assert run.state.steps_done == 2
    list(run.train())
    assert run.finished


def test_a_model_that_was_packed_again_keeps_its_facts(finished):
    saved = unpack(finished.model.read_bytes())
    assert unpack(pack(saved)).facts == saved.facts
