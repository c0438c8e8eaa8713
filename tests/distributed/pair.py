"""Two real processes over gloo on loopback: starts them, and what they do in the tests.

`python -m tests.distributed.pair NAME FOLDER` runs the function NAME of this file in each of them.
"""

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from inspect import signature
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.conftest import stripes, toy_settings
from torch import Tensor, nn

from aggmatch.data import DataSet, Split
from aggmatch.distributed import Processes, heartbeat, joined
from aggmatch.evaluation import predict, prepare
from aggmatch.methods import METHODS
from aggmatch.models.shared_norm import synchronize
from aggmatch.models.target_only import BatchNorm
from aggmatch.models.wide_resnet import WideResNet
from aggmatch.settings import RunSettings
from aggmatch.training.begin import give_start, resume, start
from aggmatch.training.run import Stopped
from aggmatch.training.trainer import Trainer
from aggmatch.validate import InvalidValue

ROOT = Path(__file__).parents[2]
STEPS = 6
BACKBONE = f"{ROOT / 'tests' / 'training' / 'frozen_backbone.py'}:Bands"
COLD = {
    "recipe": "cold-start",
    "method__alignment_steps": 3,
    "method__warmup": 2,
    "method__rotated": 8,
    "method__rotation_steps": 4,
}
NEIGHBOURS = {
    "recipe": "neighbours",
    "method__contrast_steps": 2,
    "method__propagation_steps": 2,
    "method__propagations": 2,
    "method__neighbours": 5,
}
CASES: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in METHODS.names()},
    "paws": (
        "paws",
        {"optim__lr": 0.1, "optim__warmup": 0.0},
    ),  # with its own rate, rounding grows tenfold in each step
    "aggmatch, cold start": ("aggmatch", COLD),
    "aggmatch, neighbours": ("aggmatch", NEIGHBOURS),
    "fixmatch, exact gradient": ("fixmatch", {"train__exact_gradient": True}),
    "aggmatch, frozen backbone": ("aggmatch", {"train__backbone": "frozen", "model__name": BACKBONE}),
    "fixmatch, linear start": (
        "fixmatch",
        {"train__backbone": "finetune", "model__name": BACKBONE, "train__linear_start": True},
    ),
}
"""Name → method and changed settings."""


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    """What torchrun sets."""
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    fixed = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return os.environ | fixed | {name: str(value) for name, value in own.items()}


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def launch(*words: object) -> list[subprocess.Popen[str]]:
    """Start Python with these words in several processes that can find each other. Triton's kernels run on the CPU."""
    port = free_port()
    return [
        subprocess.Popen(
            [sys.executable, *map(str, words)],
            env=environment(rank, 2, port) | {"TRITON_INTERPRET": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in range(2)
    ]


def run_pair(name: str, folder: Path) -> list[Any]:
    """Run a function of this file in two processes; return what each of them saved."""
    started = launch("-m", "tests.distributed.pair", name, folder)
    outputs = [process.communicate(timeout=240) for process in started]
    for process, (out, err) in zip(started, outputs, strict=True):
        assert process.returncode == 0, out + err
    return found_by_pair(name, folder)


def found_by_pair(name: str, folder: Path) -> list[Any]:
    """What both processes saved."""
    return [torch.load(folder / f"{name}-{rank}.pt") for rank in range(2)]


def toy() -> tuple[DataSet, Split]:
    """The toy data of the tests, with enough test images for two batches of an evaluation."""
    data = DataSet("toy", stripes(90, 0), stripes(1500, 1), ("rows", "columns", "diagonals"), True, {"rows": "columns"})
    return data, Split("toy", 3, 0, len(data.train), torch.arange(6), data.train.labels[:6], torch.arange(90))


def make_trainer(name: str, processes: Processes, **changes: object) -> Trainer:
    """The trainer of one of the cases."""
    (method, settings), (data, split) = CASES[name], toy()
    trainer = Trainer(toy_settings(method, **settings | changes), data, split, torch.device("cpu"), processes=processes)
    give_start(trainer, split)
    return trainer


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
    trainer.online.processes = None
    alone = predict(trainer.method, trainer.online, test)
    return {"losses": losses, "state": state, "together": together, "alone": alone}


def count_reductions(processes: Processes) -> int:
    """How often the processes add up tensors in a few steps."""
    trainer, count = make_trainer("aggmatch", processes), 0
    reduce = dist.all_reduce

    def counted(*arguments: Any) -> None:
        nonlocal count
        count += 1
        reduce(*arguments)

    dist.all_reduce = counted  # type: ignore[assignment]
    for _ in range(STEPS):
        trainer.step()
    dist.all_reduce = reduce
    return count


def norm_cases() -> dict[str, tuple[nn.Module, Tensor, int]]:
    """Name → a norm, its whole input and how many of its last rows are target-only."""
    torch.manual_seed(0)
    cases: dict[str, tuple[nn.Module, Tensor, int]] = {
        "1d": (nn.BatchNorm1d(3), torch.randn(8, 3) * 2 + 1, 0),
        "2d": (nn.BatchNorm2d(3), torch.randn(8, 3, 4, 4) * 2 + 1, 0),
        "plain": (BatchNorm(3), torch.randn(8, 3, 4, 4) * 2 + 1, 0),
        "target-only": (BatchNorm(3), torch.randn(8, 3, 4, 4) * 2 + 1, 4),
        "no affine map": (nn.BatchNorm1d(3, affine=False, momentum=None), torch.randn(8, 3), 0),
        "no statistics": (nn.BatchNorm1d(3, track_running_stats=False), torch.randn(8, 3), 0),
    }
    for norm, _, _ in cases.values():
        for parameter in norm.parameters():
            nn.init.uniform_(parameter, 0.5, 1.5)
    return cases


def normalized(processes: Processes) -> dict[str, dict[str, Tensor | None]]:
    """Output, gradients and statistics of each norm for the rows of this process."""
    found = {}
    for name, (norm, whole, targets) in norm_cases().items():
        network = nn.Sequential(norm)
        if processes.connected:
            synchronize(network, processes)
        x = whole[processes.rank :: processes.world].clone().requires_grad_()
        y = norm(x, targets // processes.world) if targets else norm(x)
        learned = len(x) - targets // processes.world
        (y * whole.sin()[processes.rank :: processes.world])[:learned].sum().backward()
        found[name] = {"y": y.detach(), "x": x.grad, **norm.state_dict()}
        found[name] |= {f"gradient of {key}": value.grad for key, value in norm.named_parameters()}
    return found


def fused(processes: Processes) -> dict[str, Tensor | None]:
    """Features, gradients and statistics of the pass in Triton kernels, half of whose images are target-only."""
    from aggmatch.models.fused import fused_features

    torch.manual_seed(0)
    network = WideResNet(3, 10, 1).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if processes.connected:
        synchronize(network, processes)
    x = torch.randn(8, 3, 4, 4)[processes.rank :: processes.world].contiguous(memory_format=torch.channels_last)
    features = fused_features(network, x, len(x) // 2)
    learned = torch.arange(8 * network.features).sin().view(8, -1)[processes.rank :: processes.world]
    (features * learned)[: len(x) // 2].sum().backward()
    gradients = {f"gradient of {key}": value.grad for key, value in network.named_parameters()}
    return {"y": features.detach(), **network.state_dict(), **gradients}


def everything(processes: Processes) -> dict[str, Any]:
    """All that two processes can do one after the other."""
    return {
        "methods": {name: trained(name, processes) for name in CASES},
        "local": trained("fixmatch", processes, train__batchnorm="local"),
        "reductions": count_reductions(processes),
        "norms": normalized(processes),
        "fused": fused(processes),
    }


# Runs with a folder -------------------------------------------------------------------------------------------------


def run_settings(**changes: object) -> RunSettings:
    """Settings of a run of twelve steps, with a checkpoint after each fourth."""
    cadence = {"train__log_every": 2, "train__evaluate_every": 6, "runtime__checkpoint_every": 4}
    return toy_settings("aggmatch", **{"train__steps": 12, "runtime__device": "cpu"} | cadence | changes)


def runs(processes: Processes, folder: Path) -> dict[str, Any]:
    """Runs that are started, resumed and stopped by two processes."""
    data, _ = toy()
    whole = start(run_settings(), folder / "whole", data=data, processes=processes)
    records = list(whole.train())
    for name in ("killed", "one"):  # both have a checkpoint after four steps
        run = resume(folder / name, data=data, processes=processes)
        assert run.state.steps_done == 4
        list(run.train())
    stopped = start(run_settings(), folder / "stopped", data=data, processes=processes)
    take, stop = stopped.state.step, 0

    def step() -> None:
        take()
        if processes.rank == 1 and stopped.state.steps_done == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    stopped.state.step = step
    try:
        list(stopped.train())
    except Stopped as error:
        stop = error.step
    with suppress(InvalidValue):
        start(run_settings(train__batch=3), folder / "refused", data=data, processes=processes)
    return {"records": len(records), "stop": stop, "finished": whole.finished}


def killed(processes: Processes, folder: Path) -> None:
    """A run whose second process is killed in its seventh step."""
    run = start(run_settings(), folder / "killed", data=toy()[0], processes=processes)
    for record in run.train():
        if processes.rank == 1 and record["step"] == 6:
            os.kill(os.getpid(), signal.SIGKILL)


def main(name: str, folder: Path) -> None:
    """Run a function of this file and save what it returns."""
    heartbeat.PATIENCE = 4.0
    function = globals()[name]
    with joined() as processes:
        found = function(processes, folder) if len(signature(function).parameters) == 2 else function(processes)
        torch.save(found, folder / f"{name}-{processes.rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
