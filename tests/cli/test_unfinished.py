"""A run that is not finished is used by its newest checkpoint, and every command says so in one line."""

import json

import pytest
from PIL import Image

from aggmatch.settings import resolve
from aggmatch.training.begin import start

QUICK = {"train.steps": 40, "model.name": "small-4", "train.batch": 10, "train.unlabeled_ratio": 2}
QUICK |= {"method.slots": 8, "method.subsets": 2, "runtime.checkpoint_every": 1, "train.evaluate_every": 1}


@pytest.fixture
def interrupted(tmp_path):
    """An AggMatch run on digits that was stopped after three of 40 steps, before its first snapshot."""
    training = start(resolve(QUICK), tmp_path / "run").train()
    assert [next(training)["step"] for _ in range(3)] == [1, 2, 3]
    Image.new("L", (8, 8)).save(tmp_path / "photo.png")
    return tmp_path / "run"


@pytest.mark.filterwarnings("always:.*is not finished")
@pytest.mark.parametrize(
    "words",
    [
        ["predict", "run", "photo.png"],
        ["evaluate", "run"],
        ["export", "run"],
        ["explain", "run", "17"],
        ["report", "run"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_uses_the_newest_checkpoint_and_says_so_in_one_line(run, interrupted, words):
    if words[0] == "export":
        pytest.importorskip("onnxruntime")
    code, out, err = run(*words)
    assert code == 0, err
    (warning,) = [line for line in err.splitlines() if line.startswith("Warning: ")]
    assert warning == "Warning: run is not finished: using its checkpoint of step 3 of 40."
    if words[0] == "evaluate":
        logged = json.loads((interrupted / "metrics.jsonl").read_text().splitlines()[-1])
        assert f"{logged['accuracy_average']:.2f} % of 360 test images" in out


@pytest.mark.parametrize("words", [["predict", "run", "photo.png"], ["evaluate", "run"], ["export", "run"]])
def test_a_run_without_a_checkpoint_says_how_to_continue_it(run, interrupted, words):
    for path in (interrupted / "checkpoints").iterdir():
        path.unlink()
    code, _, err = run(*words)
    assert code == 2
    assert "no checkpoint yet" in err
    assert "--resume" in err
