"""Two real processes over gloo on loopback: starts them, and what they do in the tests.

`python -m tests.distributed.pair NAME FOLDER` runs the function NAME of this file in each of them.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from tests.conftest import stripes, toy_settings

from aggmatch.data import DataSet, Split
from aggmatch.distributed import Processes, joined
from aggmatch.evaluation import predict, prepare
from aggmatch.methods import METHODS
from aggmatch.training.trainer import Trainer

ROOT = Path(__file__).parents[2]
STEPS = 6
COLD = {"recipe": "cold-start", "method__alignment_steps": 3, "method__warmup": 2, "method__rotated": 8}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in METHODS.names()},
    "aggmatch, cold start": ("aggmatch", COLD),
    "fixmatch, exact gradient": ("fixmatch", {"train__exact_gradient": True}),
}
"""Name → method and changed settings."""


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    fixed = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    return os.environ | fixed | {name: str(value) for name, value in own.items()}


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def launch(*words: object, world: int = 2, **more: str) -> list[subprocess.Popen[str]]:
    """Start Python with these words in several processes that can find each other. more: environment variables."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *map(str, words)],
            env=environment(rank, world, port) | more,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(world)
    ]


def run_pair(name: str, folder: Path, world: int = 2, **more: str) -> list[Any]:
    """Run a function of this file in processes; return what each of them saved."""
    started = launch("-m", "tests.distributed.pair", name, folder, world=world, **more)
    outputs = [process.communicate(timeout=240) for process in started]
    for process, (out, err) in zip(started, outputs, strict=True):
        assert process.returncode == 0, out + err
    return [torch.load(folder / f"{name}-{rank}.pt") for rank in range(world)]


def toy() -> tuple[DataSet, Split]:
    """The toy data of the tests, with enough test images for two batches of an evaluation."""
    data = DataSet("toy", stripes(90, 0), stripes(1500, 1), ("rows", "columns", "diagonals"), True, {"rows": "columns"})
    return data, Split("toy", 3, 0, len(data.train), torch.arange(6), data.train.labels[:6], torch.arange(90))


def make_trainer(name: str, processes: Processes, **changes: object) -> Trainer:
    """The trainer of one of the cases."""
    method, settings = CASES[name]
    return Trainer(toy_settings(method, **settings | changes), *toy(), torch.device("cpu"), processes=processes)


def trained(name: str, processes: Processes, **changes: object) -> dict[str, Any]:
    """Losses and state of a case after a few steps, and the network's predictions of test images."""
    trainer = make_trainer(name, processes, **changes)
    losses = []
    for _ in range(STEPS):
        trainer.step()
        losses.append(trainer.meters.read()["loss"])
    state = {key: tensor.clone() for key, tensor in trainer.checkpoint().tensors.items()}
    test, labeled = trainer.inputs.test.inputs, trainer.inputs.labeled
    prepare(trainer.method, trainer.online, labeled)
    together = predict(trainer.method, trainer.online, test)
    trainer.online.processes = Processes()
    alone = predict(trainer.method, trainer.online, test)
    return {"losses": losses, "state": state, "together": together, "alone": alone}


def methods(processes: Processes) -> dict[str, Any]:
    """All cases in turn, and one with statistics of each process."""
    found = {name: trained(name, processes) for name in CASES}
    found["local"] = trained("fixmatch", processes, train__batchnorm="local")
    return found


def main(name: str, folder: Path) -> None:
    """Run a function of this file and save what it returns."""
    with joined() as processes:
        torch.save(globals()[name](processes), folder / f"{name}-{processes.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
