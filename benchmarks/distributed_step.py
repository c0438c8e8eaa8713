"""What NCCL adds to a captured step: the same step without it and with it, timed in turns on one GPU.

    python benchmarks/distributed_step.py [--methods fixmatch,aggmatch] [--rounds 5] [--steps 300] [--json FILE]

`gradients` is what one process under torchrun does: it averages the gradients, of one process, in the captured step.
`everything` also gathers outputs and shares the statistics of BatchNorm, as each of several processes does, one pass
after the other. On one GPU no byte leaves it: the ratios are the cost of the additional kernels and launches, not of
the network between GPUs. The images are random, with the shape and number of CIFAR-10's, as in `aggmatch bench`.
"""

import argparse
import json
import os
import socket
from pathlib import Path
from statistics import median

import torch

from aggmatch import resolve
from aggmatch.bench.step import endless, stand_in, warm
from aggmatch.bench.timing import release, time_calls
from aggmatch.distributed import Processes, joined
from aggmatch.storage.files import write_atomically
from aggmatch.tables import Table
from aggmatch.training.trainer import Trainer

MOST = 1.03
"""Largest ratio of the step of one process with NCCL to the step without it."""


class Dividing(Processes):
    """One process that does all that several do."""

    divides = True


def environment() -> dict[str, str]:
    """What torchrun sets for one process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def measure(data_name: str, method: str, processes: Processes, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the median milliseconds of a step in each round, by variant."""
    settings = endless(resolve({"data.name": data_name, "method.name": method, "recipe": "paper"}))
    data, split = stand_in(settings)
    device = processes.device(settings.runtime.device)
    variants = {
        "alone": Processes(),
        "gradients": processes,
        "everything": Dividing(0, 1, 0, processes.heartbeat, processes.store),
    }
    trainers = {name: Trainer(settings, data, split, device, processes=some) for name, some in variants.items()}
    for trainer in trainers.values():
        warm(trainer)
    found: dict[str, list[float]] = {name: [] for name in trainers}
    for _ in range(rounds):
        for name, trainer in trainers.items():
            found[name].append(1e3 * time_calls(trainer.step, device, steps).median)
    for name, trainer in trainers.items():
        assert trainer.graph is not None or device.type != "cuda", f"{name}: the step was not captured"
    return found


def main() -> None:
    """Measure, print a table, and say whether the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--methods", default="fixmatch,aggmatch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    os.environ.update(environment())
    rows, everything = [], {}
    with joined() as processes:
        for method in options.methods.split(","):
            everything[method] = found = measure(options.data, method, processes, options.rounds, options.steps)
            release()
            alone = median(found["alone"])
            for name, times in found.items():
                ratio = median(times) / alone
                kept = "" if name != "gradients" else ("yes" if ratio <= MOST else "no")
                rows.append((method, name, f"{median(times):.3f}", f"{min(times):.3f} - {max(times):.3f}", ratio, kept))
    print(Table(["method", "variant", "ms", "rounds", "ratio", f"at most {MOST}"], rows).markdown())
    if options.json:
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        record = {"device": device, "torch": torch.__version__, "milliseconds": everything}
        write_atomically(options.json, json.dumps(record, indent=1).encode())


if __name__ == "__main__":
    main()
