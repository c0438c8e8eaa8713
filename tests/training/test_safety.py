"""Code that a run folder names is imported only if the caller names it too."""

import json
import shutil
from pathlib import Path

import pytest
import torch

import aggmatch
from aggmatch.errors import AggMatchError
from aggmatch.runs.folder import RunFolder
from aggmatch.runs.results import read_results
from aggmatch.runs.stored import read_runs
from aggmatch.settings import resolve
from aggmatch.training.begin import resume, start, start_or_resume

QUICK = {
    "data.name": "digits",
    "method.name": "supervised",
    "model.name": "small-4",
    "train.steps": 2,
    "train.batch": 10,
    "runtime.snapshots": [],
    "runtime.checkpoint_every": 1,
}
KEYS = ["method.name", "model.name", "data.name", "views.weak", "views.strong"]
PART = """
from pathlib import Path

from aggmatch.methods.supervised import METHOD

Path(__file__).with_suffix(".imported").touch()


class X(METHOD):
    pass
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    run = start(resolve(QUICK), tmp_path_factory.mktemp("runs") / "finished")
    list(run.train())
    return run.folder.path


@pytest.fixture(params=["in the working directory", "in the run folder", "by an absolute path", "as a module"])
def evil(request, finished, tmp_path, monkeypatch):
    """A copy of a finished run, the name of code that its folder may name, and the file that an import creates."""
    folder = RunFolder(shutil.copytree(finished, tmp_path / "run"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    places = {
        "in the working directory": (tmp_path / "work" / "evil.py", "evil.py:X"),
        "in the run folder": (folder.path / "evil.py", "../run/evil.py:X"),
        "by an absolute path": (tmp_path / "evil.py", f"{tmp_path / 'evil.py'}:X"),
        "as a module": (tmp_path / "work" / "evil.py", "evil:X"),
    }
    file, name = places[request.param]
    file.write_text(PART)
    return folder, name, file.with_suffix(".imported")


def name_code(folder: RunFolder, key: str, name: str) -> None:
    """Write the name of code into the stored configuration."""
    section, _, setting = key.partition(".")
    config = folder.read_config()
    folder.write_json(folder.config, config | {section: {**config[section], setting: name}})
    shutil.rmtree(folder.checkpoints, ignore_errors=True)  # they would not fit


@pytest.mark.parametrize("key", KEYS)
def test_opening_a_folder_does_not_import_code_that_it_names(evil, key):
    folder, name, imported = evil
    name_code(folder, key, name)
    opened = {
        "TrainedModel.load": lambda: aggmatch.TrainedModel.load(folder.path),
        "resume": lambda: resume(folder.path),
        "resume with a change": lambda: resume(folder.path, {"runtime.threads": 1}),
        "settings": lambda: folder.settings(),
        "settings_here": lambda: folder.settings_here(),
        "read_runs": lambda: read_runs([folder.path]),
        "other code allowed": lambda: folder.settings(allow=["other.py:X", "evil.py:Y"]),
    }
    for way, opening in opened.items():
        with pytest.raises(AggMatchError) as caught:
            opening()
        assert f"--allow-code {name}" in caught.value.options, way
        assert str(folder.config) in str(caught.value), way
    assert not imported.exists()


@pytest.mark.parametrize("key", KEYS)
def test_code_of_one_part_does_not_allow_the_code_of_another(evil, key, tmp_path):
    folder, name, imported = evil
    (tmp_path / "mine.py").write_text(PART)
    name_code(folder, key, name)
    with pytest.raises(AggMatchError, match=r"allow=\["):
        resume(folder.path, {"method.name": f"{tmp_path / 'mine.py'}:X"})
    assert not imported.exists()
    assert not (tmp_path / "mine.imported").exists()


def test_code_that_the_caller_allows_is_imported(evil):
    folder, name, imported = evil
    name_code(folder, "method.name", name)
    assert (
        aggmatch.TrainedModel.load(folder.path, allow=[name])
        .predict(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))
        .numel()
    )
    assert imported.exists()
    assert resume(folder.path, allow=[name]).finished
    (run,) = read_runs([folder.path], allow=[name])
    assert run.method == "evil.X"


@pytest.mark.parametrize("key", KEYS)
def test_a_results_file_does_not_import_code_that_it_names(evil, key, tmp_path):
    folder, name, imported = evil
    configuration = {section: value for section, value in folder.read_config().items() if section != "runtime"}
    section, _, setting = key.partition(".")
    content = {
        "configuration": configuration | {section: {**configuration[section], setting: name}},
        "steps": 2,
        "finished": True,
        "result": {"accuracy": 50.0},
        "curve": [],
        "hardware": None,
        "versions": None,
    }
    (tmp_path / "results.jsonl").write_text(json.dumps(content) + "\n")
    (line,) = read_results(tmp_path / "results.jsonl")
    assert line.run is None
    assert not imported.exists()
    (line,) = read_results(tmp_path / "results.jsonl", allow=[name])
    assert line.run is not None
    assert imported.exists() == (key == "method.name"), "other parts are imported when they are used"


# A run with your own code -------------------------------------------------------------------------------------------


@pytest.fixture
def mine(tmp_path, monkeypatch) -> Path:
    """A run that was started with a method from the file `my.py` and stopped after its first step."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    Path("my.py").write_text(PART.replace("class X", "class Mine"))
    run = start(resolve(QUICK | {"method.name": "my.py:Mine", "train.log_every": 1}), tmp_path / "run")
    next(run.train())
    return run.folder.path


def spellings(work: Path) -> list[str]:
    (work / "link.py").symlink_to(work / "my.py")
    return ["my.py:Mine", "./my.py:Mine", "../work/my.py:Mine", f"{work / 'my.py'}:Mine", "link.py:Mine"]


def test_a_run_resumes_when_its_method_is_named_again_in_any_spelling(mine: Path, tmp_path: Path):
    with pytest.raises(AggMatchError, match=r"allow=\[.*my\.py:Mine"):
        resume(mine)
    for name in spellings(tmp_path / "work"):
        assert resume(mine, {"method.name": name}).settings.method_name == f"{tmp_path / 'work/my.py'}:Mine"
        assert resume(mine, allow=[name]).settings.method_name == f"{tmp_path / 'work/my.py'}:Mine"
        assert start_or_resume(resolve(QUICK | {"method.name": name, "train.log_every": 1}), mine).state.method
    run = resume(mine, {"method.name": "my.py:Mine"})
    list(run.train())
    assert run.finished


FAILING = """
from aggmatch.methods.supervised import METHOD


class X(METHOD):
    calls = 0

    def step(self, batch, online, average):
        X.calls += 1
        if X.calls == {call}:
            raise ZeroDivisionError("a mistake")
        return super().step(batch, online, average)
"""


@pytest.mark.parametrize(("call", "left"), [(1, False), (2, True)])
def test_a_mistake_in_the_first_step_of_your_own_method_leaves_no_folder(tmp_path: Path, monkeypatch, call, left):
    monkeypatch.chdir(tmp_path)
    Path(f"failing{call}.py").write_text(FAILING.format(call=call))
    run = start(resolve(QUICK | {"method.name": f"failing{call}.py:X"}), tmp_path / "runs/own")
    with pytest.raises(ZeroDivisionError):
        list(run.train())
    assert Path("runs/own").exists() == left, "after a step, there may be something to look at"


def test_a_failing_first_step_of_a_resumed_run_deletes_nothing(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("failing.py").write_text(FAILING.format(call=1))
    start(resolve(QUICK | {"method.name": "failing.py:X"}), tmp_path / "own")
    run = resume(tmp_path / "own", {"method.name": "failing.py:X"})
    with pytest.raises(ZeroDivisionError):
        list(run.train())
    assert (tmp_path / "own/config.json").exists()


def test_a_run_resumes_from_another_working_directory(mine: Path, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resume(mine, {"method.name": "work/my.py:Mine"}).settings.method_name == f"{tmp_path / 'work/my.py'}:Mine"
    Path("my.py").write_text(PART.replace("class X", "class Mine"))
    with pytest.raises(AggMatchError, match=r"allow=\[.*my\.py:Mine"):
        resume(mine, {"method.name": "my.py:Mine"})
    assert not Path("my.imported").exists(), "another file of the same name"
