"""The timer for other projects, on a training script that does not know about it."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

PEER_STEP = Path(__file__).parents[2] / "benchmarks/peer_step.py"

SCRIPT = """
import sys, time, torch
import helper  # a module next to the script
weight = torch.ones(2, requires_grad=True)
other = torch.ones(2, requires_grad=True)
optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.SGD([other], lr=0.1)]
for step in range(int(sys.argv[1])):
    try:
        (weight * other).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
        time.sleep(0.5 if step < 2 else 0.01)
    except:  # some scripts do that; the end of the measurement must still work
        pass
print("ended by itself")
"""


@pytest.fixture
def peer(tmp_path, monkeypatch):
    """The folder of another project, as the working directory."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "helper.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("helper", None)  # other tests have a helper of their own


def test_a_step_lasts_from_one_optimizer_step_to_the_next(peer):
    words = [sys.executable, str(PEER_STEP), "--warm", "2", "--steps", "8", "train.py", "100"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found["script"] == "train.py 100"
    assert found["steps"] == 8
    assert 10 <= found["p5_ms"] <= found["median_ms"] <= found["p95_ms"]
    assert found["mean_ms"] >= 10
    assert found["median_ms"] < 300, "the first two do not count, and the second optimizer makes no steps"


def test_the_mean_includes_waits_that_the_median_hides():
    describe = runpy.run_path(str(PEER_STEP))["describe"]
    found = describe([1.0, 1.0, 1.0, 97.0], ["train.py"])
    assert (found["mean_ms"], found["median_ms"]) == (25.0, 1.0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--warm", "2", "--steps", "8", "train.py", "1"], "ended after 1 optimizer steps, of 11 needed"),
        (["--steps", "1", "train.py"], "--steps at least 2"),
        (["nothing.py"], "there is no script nothing.py"),
    ],
)
def test_a_script_that_cannot_be_timed_gives_a_clear_error(peer, monkeypatch, capsys, words, message):
    monkeypatch.setattr(sys, "argv", ["peer_step.py", *words])
    with pytest.raises(SystemExit) as stop:
        runpy.run_path(str(PEER_STEP), run_name="__main__")
    assert stop.value.code not in (0, None)
    assert message in str(stop.value.code) + capsys.readouterr().err
