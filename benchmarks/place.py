"""Steps with the training images on the device, in host memory and on disk; and a million images from disk.

    python benchmarks/place.py [--folder FOLDER] [--images 1000000] [--rounds 3] [--steps 100] [--json FILE]

First FixMatch in the shapes of CIFAR-10, with random images: the places take turns, `steps` steps each, for several
rounds, and the ratio compares medians of the same run. Then random images of 64 × 64 pixels in one file, 12 GB for a
million, which is written to FOLDER unless it is there: reading ahead alone, and training. "cold" means that the system
was told to forget the file, so that its disk is read. Without a GPU, a tiny network and 5,000 images only show that
everything runs.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from aggmatch.bench.step import endless, stand_in, warm
from aggmatch.bench.timing import release, synchronize
from aggmatch.data import DataSet, Images, make_split
from aggmatch.data.rows import as_tensor
from aggmatch.devices import choose_device, provenance
from aggmatch.models import Network
from aggmatch.settings import RunSettings, resolve
from aggmatch.training.trainer import Trainer

PLACES = ("device", "host", "disk")
CLASSES = tuple(map(str, range(10)))
SHAPE = (3, 64, 64)
PIECE = 4096
"""Images that are drawn at random; the file repeats them, each time with other values."""


def settings_for(device: torch.device, place: str, **changes: object) -> RunSettings:
    """Return FixMatch's settings for CIFAR-10, with a tiny network and batch on a CPU."""
    small = {"model.name": "small-8", "train.batch": 16} if device.type == "cpu" else {}
    values = {"data.name": "cifar10", "data.labels": 40, "method.name": "fixmatch", "runtime.place": place}
    return endless(resolve(values | small | changes))


def milliseconds(function: Callable[[], object], device: torch.device, calls: int) -> float:
    """Return the mean time of so many calls, with all that they wait for."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        function()
    synchronize(device)
    return 1e3 * (time.perf_counter() - begin) / calls


def compare_places(device: torch.device, rounds: int, steps: int) -> dict[str, dict[str, float]]:
    """Return the times of a step for each place of the images, and their ratio to images on the device."""
    count = 5000 if device.type == "cpu" else None
    data, split = stand_in(settings_for(device, "device"), count)
    trainers = {place: Trainer(settings_for(device, place), data, split, device) for place in PLACES}
    for trainer in trainers.values():
        warm(trainer)
        milliseconds(trainer.step, device, steps)
    times: dict[str, list[float]] = {place: [] for place in PLACES}
    for _ in range(rounds):
        for place, trainer in trainers.items():
            times[place].append(milliseconds(trainer.step, device, steps))
    middle = {place: statistics.median(found) for place, found in times.items()}
    return {
        place: {"ms": middle[place], "low": min(found), "high": max(found), "ratio": middle[place] / middle["device"]}
        for place, found in times.items()
    }


def write_images(path: Path, count: int) -> float:
    """Write random images to a .npy file, unless it holds so many; return the seconds that it took."""
    begin = time.perf_counter()
    if path.exists() and np.load(path, mmap_mode="r").shape == (count, *SHAPE):
        return 0.0
    piece = np.random.default_rng(0).integers(0, 256, (min(PIECE, count), *SHAPE), dtype=np.uint8)
    with path.open("wb") as file:
        header = {"descr": "|u1", "fortran_order": False, "shape": (count, *SHAPE)}
        np.lib.format.write_array_header_1_0(file, header)
        for first in range(0, count, len(piece)):
            piece += 1
            piece[: count - first].tofile(file)
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def million(device: torch.device, path: Path, steps: int) -> dict[str, float]:
    """Return images per second from a file: read and copied ahead, and in training; each cold and cached."""
    pixels = as_tensor(np.load(path, mmap_mode="r"))
    labels = torch.arange(len(pixels)) % len(CLASSES)
    few = 4 * PIECE
    data = dataset(pixels, labels)
    on_device = dataset(pixels[:few].clone(), labels[:few])
    settings = settings_for(device, "disk")
    trainer = build(settings, data, device)
    images = trainer.labeled_batch + settings.train.batch * settings.train.unlabeled_ratio

    milliseconds(trainer.next_inputs, device, 3)
    forget(path)
    times = {"read, cold": milliseconds(trainer.next_inputs, device, steps)}
    read_whole(path)
    times["read, cached"] = milliseconds(trainer.next_inputs, device, steps)
    warm(trainer)
    times["trained, cached"] = milliseconds(trainer.step, device, steps)
    forget(path)
    times["trained, cold"] = milliseconds(trainer.step, device, steps)
    resident = build(settings_for(device, "device"), on_device, device)
    warm(resident)
    times["trained, on the device"] = milliseconds(resident.step, device, steps)
    return {name: 1e3 * images / found for name, found in times.items()}


def dataset(pixels: Tensor, labels: Tensor) -> DataSet:
    """Return random images as a data set whose name only chooses the recipe, without the hash of all images."""
    data = DataSet("cifar10", Images(pixels, labels), Images(pixels[:1], labels[:1]), CLASSES, mirror=True)
    object.__setattr__(data, "fingerprint", "not computed")
    return data


def build(settings: RunSettings, data: DataSet, device: torch.device) -> Trainer:
    """Return a trainer without the statistics of the images, which take minutes and do not change a step."""
    with patch.object(Network, "normalize_by"):
        return Trainer(settings, data, make_split(data, settings.data), device)


def forget(path: Path) -> None:
    """Ask the system to drop its copy of a file in memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_whole(path: Path) -> None:
    """Bring a file into the memory of the system."""
    with path.open("rb") as file:
        while file.read(2**26):
            pass


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("runs"), help="of the file of images (default runs)")
    parser.add_argument("--images", type=int, help="of 64 pixels; 0 leaves this part out (default 1000000)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="in a round (default 100, without a GPU 10)")
    parser.add_argument("--json", type=Path, help="file for the numbers")
    options = parser.parse_args()
    device = choose_device("auto")
    on_cpu = device.type == "cpu"
    steps = options.steps or (10 if on_cpu else 100)
    count = (5000 if on_cpu else 1_000_000) if options.images is None else options.images
    result: dict[str, object] = provenance(device, 0) | {"steps": steps, "rounds": options.rounds}
    places = result["places"] = compare_places(device, options.rounds, steps)
    release()
    for place, row in places.items():
        span = f"{row['low']:.3f} to {row['high']:.3f}"
        print(f"{place:6}: {row['ms']:.3f} ms per step ({span}), {row['ratio']:.3f} of device", flush=True)
    if count:
        options.folder.mkdir(parents=True, exist_ok=True)
        path = options.folder / f"place-{count}.npy"
        seconds = write_images(path, count)
        size = path.stat().st_size / 1e9
        print(f"{count:,} images of 64 × 64 pixels, {size:.1f} GB, written in {seconds:.1f} s", flush=True)
        speeds = million(device, path, steps)
        result |= {"images": count, "write_seconds": seconds, "images_per_second": speeds}
        for name, speed in speeds.items():
            print(f"{name:22}: {speed:9,.0f} images/s, {speed * np.prod(SHAPE) / 1e6:7,.0f} MB/s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
