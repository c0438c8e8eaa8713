"""Fixtures that several test files share: a tiny data set, its settings, and the command line."""

import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from aggmatch import cli, console
from aggmatch.config import Layer
from aggmatch.data import DataSet, Images, Split
from aggmatch.runs.checkpoint import Checkpoint
from aggmatch.settings import RunSettings, resolve
from aggmatch.training.trainer import Trainer

# A slow machine is not a bug.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory) -> Iterator[Path]:
    """Cached files of the tests go to a folder of their own, also those of processes that a test starts."""
    folder: Path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills; if pytest has several workers, the first one that asks does it for all."""
    root: Path = factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / name
    with (root / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            folder.mkdir()
            make(folder)
    return folder


def stripes(count: int, seed: int) -> Images:
    """Three classes that a network learns in a few steps: horizontal, vertical and diagonal stripes with noise."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    row, column = torch.meshgrid(torch.arange(8), torch.arange(8), indexing="ij")
    patterns = torch.stack([row % 2, column % 2, (row + column) % 2])[:, None] * 160
    noise = torch.randint(0, 95, (count, 1, 8, 8), generator=generator)
    return Images((patterns[labels] + noise).to(torch.uint8), labels)


@pytest.fixture(scope="session")
def toy_data() -> DataSet:
    return DataSet("toy", stripes(90, 0), stripes(60, 1), ("rows", "columns", "diagonals"), True, {"rows": "columns"})


@pytest.fixture(scope="session")
def toy_split(toy_data: DataSet) -> Split:
    return Split("toy", 3, 0, len(toy_data.train), torch.arange(6), toy_data.train.labels[:6], torch.arange(90))


SMALL: dict[str, dict[str, object]] = {
    "aggmatch": {"method.slots": 16, "method.subsets": 4},
    "mixmatch": {"method.alpha": 0.1, "method.unlabeled_weight": 10.0},
    "featmatch": {
        "method.strong_views": 1,
        "method.warmup": 2,
        "method.refresh_every": 2,
        "method.recorded": 64,
        "method.labeled_prototypes": 2,
        "method.unlabeled_prototypes": 2,
        "method.alpha": 0.05,
    },
    "comatch": {"method.memory": 48, "method.embedding": 8},
    "simmatch": {"method.embedding": 8},
    "paws": {
        "method.small_crops": 1,
        "views.crops.large_area": [1, 1],  # crops that keep the stripes
        "views.crops.small_area": [0.25, 0.25],
        "views.crops.small_side": 0.5,
        "views.crops.solarized": 0.0,
        "views.crops.jitter": 0.2,
        "optim.optimizer": "sgd",
        "optim.lr": 0.03,
    },
}
"""Settings of methods on the toy data."""


def dotted(changes: Mapping[str, object]) -> dict[str, object]:
    """Settings by their dotted names: `optim__lr`, the name of an argument, stands for `optim.lr`."""
    return {key.replace("__", "."): value for key, value in changes.items()}


def toy_settings(method: str = "aggmatch", **changes: object) -> RunSettings:
    """Settings of a run on the toy data that takes about a second."""
    values = {
        "data.name": "toy",
        "data.labels": 6,
        "method.name": method,
        "model.name": "small-4",
        "views.ops": ["identity", "rotate", "brightness", "posterize"],
        "views.shift": 0.0,
        "train.steps": 40,
        "train.batch": 6,
        "train.unlabeled_ratio": 3,
        "train.log_every": 5,
        "train.evaluate_every": 20,
        "runtime.checkpoint_every": 10,
        "optim.average": 0.9,
        "optim.average_warmup": True,
        "recipe": "frozen" if changes.get("train__backbone") == "frozen" else "paper",
    }
    return resolve([Layer("the test", values | SMALL.get(method, {}) | dotted(changes))])


@pytest.fixture
def toy_state(toy_data: DataSet, toy_split: Split):
    """Makes the trainer of a method on the toy data."""

    def make(method: str = "aggmatch", **changes: object) -> Trainer:
        return Trainer(toy_settings(method, **changes), toy_data, toy_split, torch.device("cpu"))

    return make


@pytest.fixture
def toy_resume(toy_state):
    """Makes two checkpoints after six steps: of a run without a stop, and of one that was restored after three."""

    def make(method: str, **changes: object) -> tuple[Checkpoint, Checkpoint]:
        whole, stopped, resumed = (toy_state(method, **changes) for _ in range(3))
        for _ in range(6):
            whole.step()
            if stopped.steps_done < 3:
                stopped.step()
        resumed.restore(stopped.checkpoint())
        for _ in range(3):
            resumed.step()
        return whole.checkpoint(), resumed.checkpoint()

    return make


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One CPU thread, so that the order of sums does not depend on the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def exact_convolutions() -> Iterator[None]:
    """Convolutions without TF32, which rounds differently from kernel to kernel."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs the command line in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    for screen in (console.stdout, console.stderr):
        monkeypatch.setattr(screen, "width", 200)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["aggmatch", *map(str, words)])
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call
