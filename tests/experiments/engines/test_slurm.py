"""The array script for Slurm, run by a fake sbatch that starts its tasks with bash."""

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.slurm import Slurm, checked, read_plan
from aggmatch.experiments.planned import PlannedRun
from aggmatch.settings import resolve

SBATCH = """\
#!/bin/bash
# Notes the script, and how it was called.
cp "${!#}" "$FAKE/submitted.sh"
pwd > "$FAKE/folder"
echo "$@" >> "$FAKE/calls"
echo "77;cluster"
"""
SQUEUE = """\
#!/bin/bash
echo "$@" >> "$FAKE/asked"
if [ ! -e "$FAKE/queue" ]; then echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; fi
cat "$FAKE/queue"
"""
SCONTROL = """\
#!/bin/bash
echo "$@" >> "$FAKE/requeued"
"""


@pytest.fixture
def fake(tmp_path, monkeypatch, importable) -> Path:
    """A folder with commands of Slurm that are first on the path, and with what they noted."""
    folder = tmp_path / "fake"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scontrol", SCONTROL)):
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def start(script: Path, number: int) -> subprocess.Popen[str]:
    """Start a task of the array as Slurm does."""
    environment = os.environ | {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "77"}
    command, pipe = ["bash", str(script)], subprocess.PIPE
    return subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=subprocess.STDOUT)


def finish(task: subprocess.Popen[str]) -> tuple[int, str]:
    """Wait for a task; return its exit code and what it printed."""
    out, _ = task.communicate(timeout=60)
    return task.returncode, out


def wait_for(condition, task):
    """Wait until something is true of a task that runs."""
    while not condition():
        assert task.poll() is None, task.communicate()
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "queued_again"), [(signal.SIGTERM, False), (signal.SIGUSR1, True)])
def test_a_task_that_is_stopped_and_queued_again_gives_the_same_result(
    plan, fake, follow, content, tmp_path, number, queued_again
):
    run = plan(train__steps=200, runtime__checkpoint_every=20, train__evaluate_every=100).runs[0]
    assert not list(Slurm(tmp_path / "out", submit=True).train([run], quiet=True))
    script = fake / "submitted.sh"
    task = start(script, 0)
    wait_for(run.folder.checkpoints.exists, task)
    task.send_signal(number)
    code, out = finish(task)
    assert code == 128 + signal.SIGTERM, out
    assert "Stopped and saved" in out
    assert not run.finished
    assert (fake / "requeued").exists() == queued_again, "Slurm itself queues a preempted task again"
    if queued_again:
        assert (fake / "requeued").read_text() == "requeue 77_0\n"
    code, out = finish(start(script, 0))
    assert (code, run.finished) == (0, True), out
    undisturbed = PlannedRun(run.settings, tmp_path / "undisturbed", "")
    undisturbed.complete(follow)
    assert content(run.path) == content(undisturbed.path)


def test_a_second_call_submits_only_what_is_neither_finished_nor_in_the_queue(plan, fake, tmp_path, capsys, pretend):
    runs = plan().runs[:4]
    first = Slurm(tmp_path / "out", submit=True)
    list(first.train(runs, quiet=True))
    assert first.later == 4
    assert "Submitted job 77, an array of 4 tasks." in capsys.readouterr().out
    pretend(runs[0], 50.0)
    (fake / "queue").write_text("1\n3\n")
    again = Slurm(tmp_path / "out", submit=True)
    list(again.train(runs, quiet=True))
    assert "In the queue of Slurm: 2 runs." in capsys.readouterr().out
    assert "#SBATCH --array=0-0\n" in (fake / "submitted.sh").read_text()
    plans = [json.loads(path.read_text())["runs"] for path in (tmp_path / "out/slurm").glob("plan-*.json")]
    assert sorted(map(len, plans)) == [1, 4], "a plan in the queue stays as it is"
    assert min(plans, key=len)[0]["path"] == str(runs[2].path)
    (fake / "queue").unlink()  # Slurm has forgotten the jobs
    list(Slurm(tmp_path / "out", submit=True).train(runs, quiet=True))
    assert "#SBATCH --array=0-2\n" in (fake / "submitted.sh").read_text()


def test_if_all_runs_are_finished_nothing_is_written(plan, fake, tmp_path, pretend, capsys):
    run = plan().runs[0]
    pretend(run, 50.0)
    engine = Slurm(tmp_path / "out", submit=True)
    list(engine.train([run], quiet=True))
    assert (engine.later, capsys.readouterr().out) == (0, "")
    assert not (tmp_path / "out").exists()


HOSTILE = ["with space", "$(touch INJECTED)", "`touch INJECTED`", "a'b\"c", "line\nbreak", "#hash;&|", "-dash", "%A"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_stay_names(name, fake, tmp_path, monkeypatch, plan):
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.chdir(folder)
    run = plan().runs[0]
    run = PlannedRun(run.settings, Path("out") / name / "run", name)
    slurm = Slurm(Path("out"), ["partition=gpu"])
    plan_file, script = slurm.write([run])
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    stub = f'printf "%s\\0" "$PWD" "$@" > {fake}/seen'
    (fake / "python").write_text(f"#!/bin/bash\n{stub}\n")
    (fake / "python").chmod(stat.S_IRWXU)
    monkeypatch.setattr("sys.executable", str(fake / "python"))
    _, script = slurm.write([run])
    code, out = finish(start(script, 0))
    assert (code, out) == (0, "")
    seen = (fake / "seen").read_text().split("\0")
    assert seen[:-1] == [str(folder), "-m", "aggmatch", "planned", str(plan_file), "--number", "0"]
    assert not list(tmp_path.rglob("INJECTED"))
    directives = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert not [line for line in directives if str(tmp_path) in line]
    assert read_plan(plan_file, 0).path == folder / "out" / name / "run"
    assert read_plan(plan_file, 0).settings.identity() == run.settings.identity()


def directives(slurm: Slurm, runs: list[PlannedRun]) -> list[str]:
    """Options for sbatch in the script of some runs."""
    _, script = slurm.write(runs)
    start = "#SBATCH --"
    return [line.removeprefix(start) for line in script.read_text().splitlines() if line.startswith(start)]


def test_the_script_asks_for_a_gpu_unless_the_options_or_the_device_say_otherwise(plan, tmp_path):
    runs, on_cpu = plan().runs[:3], plan(runtime__device="cpu").runs[:3]
    plain = directives(Slurm(tmp_path, ["time=24:00:00", "--mem=16G"], 2), runs)
    assert plain[-3:] == ["gpus=1", "time=24:00:00", "mem=16G"]
    assert {"array=0-2%2", "requeue", "open-mode=append", "signal=B:USR1@120"} <= set(plain)
    assert "gpus=1" not in directives(Slurm(tmp_path, ["gres=shard:1"]), runs)
    assert "gpus=1" not in directives(Slurm(tmp_path), on_cpu)


def test_code_that_the_settings_name_is_allowed_by_the_script_and_refused_without_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("from aggmatch.methods.supervised import Supervised\n\nMine = Supervised\n")
    name = f"{tmp_path / 'mine.py'}:Mine"
    plan, script = Slurm(tmp_path).write([PlannedRun(resolve({"method.name": name}), tmp_path / "run", "mine")])
    assert f"--allow-code {name}" in script.read_text()
    with pytest.raises(AggMatchError, match="mine.py:Mine"):
        read_plan(plan, 0)
    assert read_plan(plan, 0, [name]).title == "mine"
    with pytest.raises(AggMatchError, match="no run 1"):
        read_plan(plan, 1, [name])


@pytest.mark.parametrize(
    "option", ["partition=gpu", "gres=gpu:a100:1", "exclusive", "constraint=a100*2", "nodelist=n[1-3]"]
)
def test_options_of_sbatch_are_passed_on(option):
    assert checked(option) == checked(f"--{option}") == option


@pytest.mark.parametrize(
    "option", ["", "-p gpu", "partition=a b", "time=1\n#SBATCH --wrap=x", "partition='a'", "=x", "a=$(x)", "comment=#x"]
)
def test_options_that_could_break_the_script_are_refused(option):
    with pytest.raises(AggMatchError, match="--slurm takes"):
        checked(option)


@pytest.mark.parametrize("option", ["array=0-3", "--requeue", "no-requeue", "signal=KILL", "output=x", "wrap=x"])
def test_options_that_the_script_sets_itself_are_refused(option):
    with pytest.raises(AggMatchError, match=r"cannot be set"):
        checked(option)


def test_without_sbatch_the_message_says_how_to_submit(plan, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AggMatchError, match="cd .*slurm && sbatch array-"):
        list(Slurm(tmp_path / "out", submit=True).train(plan().runs[:1], quiet=True))


def test_what_slurm_complains_about_is_shown(plan, fake, tmp_path):
    (fake / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: invalid partition specified: gpuu' >&2\nexit 1\n")
    with pytest.raises(AggMatchError, match="invalid partition specified: gpuu"):
        list(Slurm(tmp_path / "out", submit=True).train(plan().runs[:1], quiet=True))
    slurm = Slurm(tmp_path / "out", submit=True)
    slurm.jobs.write_text('{"job": "77", "plan": "plan-x.json"}\n{"jo')
    (fake / "squeue").write_text("#!/bin/bash\necho 'squeue: error: Unable to contact slurm controller' >&2\nexit 1\n")
    with pytest.raises(AggMatchError, match="Unable to contact"):
        list(slurm.train(plan().runs[:1], quiet=True))


def test_the_command_writes_a_script_and_later_shows_the_table(run, fake, tmp_path, words):
    text = "compare digits --labels 20 --folds 1 --steps 4 --methods supervised,fixmatch --out c --on slurm"
    command = text.split()
    command += ["--slurm", "partition=cpu", "--device", "cpu", *words]
    code, out, err = run(*command)
    assert (code, err) == (0, "")
    (script,) = (tmp_path / "c/slurm").glob("array-*.sh")
    assert f"Wrote an array of 2 tasks. Submit it: cd {script.parent} && sbatch {script.name}" in out
    assert not (fake / "calls").exists()
    assert finish(start(script, 1))[0] == 0
    code, out, err = run(*command, "--submit")
    assert (code, err) == (0, "")
    assert "Submitted job 77, an array of 1 task." in out
    assert "fixmatch" in out
    assert "accuracy %" in out
    assert (fake / "folder").read_text().strip() == str(script.parent)
    assert finish(start(fake / "submitted.sh", 0))[0] == 0
    shutil.rmtree(fake)
    code, out, _ = run(*command)
    assert code == 0
    assert "supervised" in out
    assert "Slurm" not in out
