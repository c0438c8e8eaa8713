"""Runs on a real Ray of two workers on this machine, and what is checked before Ray starts."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines import on_ray
from aggmatch.experiments.engines.on_ray import OnRay, RayCluster
from aggmatch.runs import checkpoint
from aggmatch.runs.folder import RunFolder

LONGEST = 90.0
"""Seconds until a test gives up."""
MARK = "AGGMATCH_TEST_OF_RAY"
"""A variable in the environment of the workers of one test."""


def wait_for(what, process):
    """Return the first value of `what()` that is not empty, or None if the process ends first."""
    started = time.monotonic()
    while process.poll() is None and time.monotonic() - started < LONGEST:
        if value := what():
            return value
        time.sleep(0.02)
    return None


def find_worker(title: str, mark: str) -> int | None:
    """The process that trains the run with a title."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            name, environment = (place / "cmdline").read_bytes(), (place / "environ").read_bytes()
        except OSError:  # over, or of somebody else
            continue
        if name.rstrip(b"\0") == f"ray::{title}".encode() and f"{MARK}={mark}".encode() in environment.split(b"\0"):
            return int(place.name)
    return None


@pytest.fixture
def compare(tmp_path, words, importable, run):
    """Starts `aggmatch compare` with methods, on a Ray that it starts, or here; both in the folder of the test."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'aggmatch[cluster]'")
    if not Path("/proc/self/environ").exists():
        pytest.skip("finds the workers of Ray in /proc")
    started = []
    every = {"train.log_every": 4, "train.evaluate_every": 20, "runtime.checkpoint_every": 20}
    common = ["compare", "digits", "--labels", "20", "--folds", "1", "--steps", "300", "--device", "cpu", *words]
    common += [word for key, value in every.items() for word in ("--set", f"{key}={value}")]

    def here(methods: str, out: str) -> None:
        code, _, err = run(*common, "--methods", methods, "--out", out, "--quiet")
        assert code == 0, err

    def on_ray(methods: str, out: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "aggmatch", *common, "--methods", methods, "--out", out]
        command += ["--on", "ray", "--address", "local"]
        environment, pipe = {**os.environ, MARK: tmp_path.name}, subprocess.PIPE
        process = subprocess.Popen(command, env=environment, text=True, stdout=pipe, stderr=pipe)
        started.append(process)
        return process

    yield SimpleNamespace(here=here, on_ray=on_ray)
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_neither_a_killed_worker_nor_ctrl_c_changes_a_weight_or_a_line_of_the_log(compare, content, tmp_path):
    command = compare.on_ray("fixmatch,supervised", "remote")
    killed, stopped = (RunFolder(tmp_path / f"remote/{method}/fold0") for method in ("fixmatch", "supervised"))

    def worker_of(title: str) -> int:
        worker = find_worker(title, tmp_path.name)
        assert worker, command.communicate()
        return worker

    wait_for(lambda: checkpoint.found(stopped.checkpoints), command)
    paused = worker_of("supervised fold 0")  # so that it is in training when the other one is finished
    os.kill(paused, signal.SIGSTOP)
    wait_for(lambda: len(checkpoint.found(killed.checkpoints)) > 1, command)
    os.kill(worker_of("fixmatch fold 0"), signal.SIGKILL)
    assert not killed.summary.exists(), "it was killed too late"
    wait_for(killed.summary.exists, command)
    command.send_signal(signal.SIGINT)
    time.sleep(1.5)  # until the command has asked its workers to stop
    os.kill(paused, signal.SIGCONT)
    out, err = command.communicate(timeout=LONGEST)

    assert command.returncode == 128 + signal.SIGINT, (out, err)
    assert "Stopped and saved" in err
    lines = [line.split("  ") for line in out.splitlines()]
    events = [line[1] for line in lines if line[0] == "fixmatch fold 0" and len(line) == 2]
    assert events == ["started", "interrupted", "started", "finished"]
    assert not stopped.summary.exists()
    assert ["supervised fold 0", "stopped"] in lines
    compare.here("fixmatch,supervised", "remote")  # continues
    compare.here("fixmatch,supervised", "here")
    for folder in (killed, stopped):
        assert content(folder.path) == content(tmp_path / "here" / folder.path.relative_to(tmp_path / "remote"))


def test_without_ray_the_message_says_how_to_install_it(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    code, _, err = run(*["compare", "digits", "--methods", "supervised", "--folds", "1", "--steps", "4", "--on", "ray"])
    assert code == 2
    assert "pip install 'aggmatch[cluster]'" in err


class FakeRay:
    """As much of Ray as connecting needs. gpus: of the cluster."""

    def __init__(self, gpus=0.0, error=None):
        self.gpus, self.error, self.addresses = gpus, error, []
        self.util = SimpleNamespace(
            queue=SimpleNamespace(Queue=lambda *_, **__: None),
            scheduling_strategies=SimpleNamespace(NodeAffinitySchedulingStrategy=lambda *_, **__: None),
        )

    def is_initialized(self):
        return False

    def init(self, address, **_):
        self.addresses.append(address)
        if self.error:
            raise self.error

    def cluster_resources(self):
        return {"CPU": 8.0, "GPU": self.gpus} if self.gpus else {"CPU": 8.0}

    def get_runtime_context(self):
        return SimpleNamespace(get_node_id=lambda: "node")

    def remote(self, **_):
        return lambda function: function


@pytest.fixture
def cluster(monkeypatch, plan):
    """Connects to a fake Ray for a run with these settings."""

    def make(ray, at_once=1, address=None, **changes):
        monkeypatch.setattr(on_ray, "import_ray", lambda: ray)
        return RayCluster(address, plan(**changes).runs, at_once)

    return make


def test_a_run_takes_a_share_of_a_gpu_if_the_cluster_has_one_or_the_run_asks_for_it(cluster):
    assert cluster(FakeRay()).resources == {"num_cpus": 1, "num_gpus": 0}
    assert cluster(FakeRay(gpus=2.0), 4).resources == {"num_cpus": 1, "num_gpus": 0.25}
    assert cluster(FakeRay(gpus=2.0), runtime__device="cpu", runtime__threads=3).resources["num_gpus"] == 0
    waiting = cluster(FakeRay(), 2, runtime__device="cuda", runtime__threads=3)
    assert waiting.resources == {"num_cpus": 3, "num_gpus": 0.5}
    assert waiting.needs == "3 CPU and 0.5 GPU"


def test_a_certain_gpu_cannot_be_asked_for(cluster):
    with pytest.raises(AggMatchError, match="runtime.device is 'cuda:1'"):
        cluster(FakeRay(gpus=2.0), runtime__device="cuda:1")


def test_the_address_comes_from_the_option_or_else_from_the_environment(cluster, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    ray = FakeRay()
    cluster(ray)
    cluster(ray, address="local")
    assert ray.addresses == ["auto", "local"]
    with pytest.raises(AggMatchError, match="ray://10.0.0.1:10001"):
        cluster(ray, address="ray://10.0.0.1:10001")


def test_an_address_where_no_cluster_is_is_named_at_once(cluster):
    with pytest.raises(AggMatchError, match="at auto: nobody answers. Start it"):
        cluster(FakeRay(error=ConnectionError("nobody answers.\nmore")), address="auto")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ray = FakeRay()
    with pytest.raises(AggMatchError, match=f"at 127.0.0.1:{port}: .*refused"):
        cluster(ray, address=f"127.0.0.1:{port}")
    assert not ray.addresses


def test_finished_runs_need_no_cluster(plan, pretend, monkeypatch):
    monkeypatch.setattr(on_ray, "import_ray", lambda: pytest.fail("Ray is not needed"))
    runs = plan().runs[:2]
    for run in runs:
        pretend(run, 50.0)
    assert list(OnRay().train(runs, quiet=True)) == []
