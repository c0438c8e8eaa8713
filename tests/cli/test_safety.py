"""No command runs code that only a run folder, a configuration or a results file names."""

import json
import shutil
from pathlib import Path

import pytest

FINISHED = Path(__file__).parents[1] / "fixtures" / "runs-0.1" / "finished"
KEYS = ["method.name", "data.name", "model.name", "views.weak", "views.strong"]
COMMANDS = {
    "predict": ["predict", "theirs", "image.png"],
    "evaluate": ["evaluate", "theirs"],
    "export": ["export", "theirs"],
    "results": ["results", "theirs"],
    "results of several": ["results", "."],
    "report": ["report", "theirs"],
    "report --watch": ["report", "theirs", "--watch"],
    "figures": ["figures", "theirs"],
    "explain": ["explain", "theirs", "0"],
    "train --resume": ["train", "--resume", "--out", "theirs"],
    "train --config FOLDER": ["train", "--config", "theirs", "--out", "new"],
    "train --config FILE": ["train", "--config", "theirs/config.json", "--out", "new"],
    "compare --config": ["compare", "--config", "theirs/config.json", "--out", "new"],
    "results of a file": ["results", "theirs.jsonl"],
    "reproduce --results": ["reproduce", "momentum", "--results", "theirs.jsonl", "--out", "new"],
    "results --out": ["results", "mine", "--out", "theirs.jsonl"],
}


@pytest.fixture
def theirs(run, tmp_path):
    """Makes a run folder and a results file that name code in the working directory; returns what an import creates."""

    def make(key: str) -> Path:
        shutil.copytree(FINISHED, "theirs")
        shutil.copytree(FINISHED, "mine")
        Path("image.png").touch()
        Path("evil.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
        section, setting = key.split(".")
        config = json.loads(Path("theirs/config.json").read_text())
        config[section][setting] = "evil:Evil"
        Path("theirs/config.json").write_text(json.dumps(config))
        del config["runtime"]
        line = {"configuration": config, "steps": 2, "finished": True, "result": {"accuracy": 50.0}, "curve": []}
        Path("theirs.jsonl").write_text(json.dumps(line | {"hardware": None, "versions": None}) + "\n")
        return tmp_path / "ran"

    return make


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("command", COMMANDS)
def test_code_that_only_a_folder_or_file_names_is_not_run(run, theirs, command, key):
    ran = theirs(key)
    before = {path: path.read_bytes() for path in Path("theirs").rglob("*") if path.is_file()}
    code, out, err = run(*COMMANDS[command])
    assert not ran.exists()
    assert "Traceback" not in out + err
    if command not in ("results of several", "results --out", "reproduce --results"):  # which use the other runs
        assert code == 2
        assert "evil:Evil" in err
    assert {path: path.read_bytes() for path in Path("theirs").rglob("*") if path.is_file()} == before
    assert not Path("new/config.json").exists()


def test_code_that_the_command_line_names_is_run(run, theirs):
    ran = theirs("method.name")
    run("evaluate", "theirs", "--allow-code", "evil:Evil")
    assert ran.exists()
