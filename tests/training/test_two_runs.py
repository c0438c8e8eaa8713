"""Two runs in one process do not disturb each other: weights, threads, flags and signal handlers."""

import json
import os
import signal
from itertools import zip_longest
from pathlib import Path

import pytest
import torch

from aggmatch.runs.folder import RunFolder
from aggmatch.settings import resolve
from aggmatch.training.begin import start
from aggmatch.training.run import Run, Stopped

QUICK = {
    "data.name": "digits",
    "data.labels": 20,
    "model.name": "small-4",
    "train.steps": 6,
    "train.batch": 10,
    "train.unlabeled_ratio": 2,
    "train.log_every": 1,
    "train.evaluate_every": 3,
    "runtime.device": "cpu",
    "runtime.snapshots": [],
}


def make(out: Path, method: str, threads: int, **changes: object) -> Run:
    return start(resolve(QUICK | {"method.name": method, "runtime.threads": threads} | changes), out)


def process_state() -> tuple[object, ...]:
    """The settings of the whole process that a run could change."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    random = torch.get_rng_state().tolist()
    return torch.get_num_threads(), torch.backends.cudnn.benchmark, torch.is_grad_enabled(), handlers, random


def test_interleaved_runs_give_the_weights_of_runs_one_after_the_other(tmp_path: Path):
    chosen = {"first": ("aggmatch", 1), "second": ("paws", 2)}
    alone = {name: make(tmp_path / f"{name}-alone", *words) for name, words in chosen.items()}
    for run in alone.values():
        assert [record["step"] for record in run.train()] == [1, 2, 3, 4, 5, 6]

    before = process_state()
    first, second = (make(tmp_path / name, *words) for name, words in chosen.items())
    for records in zip_longest(first.train(), second.train()):
        assert all(record is not None for record in records)
        assert process_state()[:3] == before[:3], "also between two steps"
    assert process_state() == before

    for run, name in ((first, "first"), (second, "second")):
        assert run.finished
        assert run.folder.model.read_bytes() == alone[name].folder.model.read_bytes()


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_the_signal_handlers_are_restored_in_whichever_order_runs_end(tmp_path: Path, first_to_end):
    before = process_state()
    generators = [make(tmp_path / name, "supervised", 1).train() for name in ("a", "b")]
    for records in generators:
        next(records)
    generators[first_to_end].close()
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(Stopped):
        list(generators[1 - first_to_end])
    assert process_state()[3] == before[3]


def test_one_signal_stops_both_runs(tmp_path: Path):
    generators = [make(tmp_path / name, "supervised", 1).train() for name in ("a", "b")]
    for records in generators:
        next(records)
    os.kill(os.getpid(), signal.SIGINT)
    for records in generators:
        with pytest.raises(Stopped):
            list(records)


# Threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def three_threads():
    """Makes torch's own number of threads 3."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def noting_threads(run: Run) -> list[int]:
    """The number of threads at each step and evaluation of a run, filled while it trains."""
    noted: list[int] = []
    step, predict = run.state.method.step, run.state.method.predict

    def noting_step(*arguments):
        noted.append(torch.get_num_threads())
        return step(*arguments)

    def noting_predict(*arguments):
        noted.append(torch.get_num_threads())
        return predict(*arguments)

    run.state.method.step, run.state.method.predict = noting_step, noting_predict
    return noted


@pytest.mark.usefixtures("three_threads")
@pytest.mark.parametrize(
    ("wanted", "model", "used"), [(0, "small-4", 1), (2, "small-4", 2), (0, "small-64", 3), (1, "small-64", 1)]
)
def test_a_run_computes_with_its_threads_and_its_files_name_them(tmp_path: Path, wanted, model, used):
    run = make(tmp_path / "run", "supervised", wanted, **{"model.name": model, "train.steps": 1})
    large = sum(weight.numel() for weight in run.state.online.parameters()) >= 500_000
    assert large == (model == "small-64")
    noted = noting_threads(run)
    list(run.train())
    assert set(noted) == {used}
    assert len(noted) > 1
    assert torch.get_num_threads() == 3

    words = f"CPU, {used} thread{'' if used == 1 else 's'}"
    (session,) = RunFolder(tmp_path / "run").sessions.read_text().splitlines()
    assert json.loads(session)["hardware"].endswith(words)
    assert json.loads(run.folder.summary.read_text())["hardware"].endswith(words)
