"""Trained networks from the folder of their run: the model it saved, and snapshots of how it got there."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aggmatch import __version__
from aggmatch.augment import check_images
from aggmatch.build import build_modules
from aggmatch.config import Changes
from aggmatch.data import DataSet, load_for
from aggmatch.data.folder import decode_all, read_labeled
from aggmatch.devices import choose_device
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import Evaluation, evaluate, predict
from aggmatch.methods import Method
from aggmatch.models import Network, images_at_once
from aggmatch.runs.checkpoint import Checkpoint, unpack
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings


@dataclass(frozen=True)
class TrainedModel:
    """The network that a run saved, with the method that knows how to predict with it."""

    network: Network
    method: Method[Any]
    classes: tuple[str, ...]
    side: int
    """Pixels of the images that it was trained on, each way."""
    settings: RunSettings

    @classmethod
    def load(cls, run: str | Path, changes: Changes = (), *, allow: Iterable[str] = ()) -> "TrainedModel":
        """Read the model of a finished run.

        run: its folder. changes: settings of section `runtime`, for example to move it to another device.
        allow: code that the folder may name (`method.name=file.py:Name`); other code is not imported.

        Example: `TrainedModel.load("runs/mine", {"runtime.device": "cpu"})`.
        """
        folder = RunFolder(Path(run))
        settings = folder.settings_here(changes, allow=allow)
        if not folder.model.exists():
            if folder.result():
                raise AggMatchError(
                    f"{run} has no {folder.model.name} any more, though its run finished. "
                    f"Copy it back, or remove {folder.summary.name} and end the run once more with --resume."
                )
            raise AggMatchError(f"{run} has no model yet: its run has not finished. Continue it with --resume.")
        saved = read_saved(folder.model)
        if not all(tensor.isfinite().all() for tensor in saved.tensors.values() if tensor.is_floating_point()):
            raise AggMatchError(
                f"{folder.model} is damaged: not all of its values are finite. Copy it back, or remove it and "
                f"{folder.summary.name} and end the run once more with --resume."
            )
        device = choose_device(settings.runtime.device)
        with damage_named(folder.model):
            method, (network,) = rebuild(saved, settings, device, "network")
            for name in method.predictor:
                method.get_buffer(name).copy_(saved.tensors[f"method.{name}"])
        return cls(network, method, tuple(saved.facts["classes"]), int(saved.facts["size"]), settings)

    def data(self, *, download: bool = False) -> DataSet:
        """The data set that it was trained on."""
        return load_for(self.settings.data, self.settings.runtime.data_dir, download)

    def predict(self, images: Tensor) -> Tensor:
        """Class probabilities of uint8 images (N, C, side, side), in the order of `classes`; (N, Y), on the CPU."""
        check_images(images)
        if images.shape[1] != self.network.channels:
            raise AggMatchError(f"The model takes images of {self.network.channels} channels, got {images.shape[1]}.")
        if images.shape[-1] != self.side:
            side = images.shape[-1]
            raise AggMatchError(
                f"The model takes images of {self.side} × {self.side} pixels, got {side} × {side}. "
                f"`predict_files` scales them."
            )
        return predict(self.method, self.network, images)

    def predict_files(self, files: Sequence[Path]) -> Iterator[tuple[Path, Tensor]]:
        """Each file that can be read with its class probabilities, (Y,); images are scaled as for training."""
        batch = images_at_once(self.side)
        for first in range(0, len(files), batch):
            some = files[first : first + batch]
            pixels, kept = decode_all(some, self.side, self.network.channels)
            for position, probs in zip(kept, self.predict(pixels), strict=True):
                yield some[position], probs

    def evaluate(self, data: DataSet | Path) -> Evaluation:
        """Predictions on the test images of a data set, or on those of a folder with a subfolder for each class."""
        if isinstance(data, Path):
            images = read_labeled(data, self.classes, self.side, self.network.channels)
            return evaluate(self.method, self.network, images)
        if data.classes != self.classes:
            raise AggMatchError(
                f"The model knows {', '.join(self.classes)}, but {data.name} has {', '.join(data.classes)}."
            )
        return evaluate(self.method, self.network, data.test)


@dataclass(frozen=True)
class Snapshot:
    """Both networks and the method (AggMatch's queue in it) as they were after a step."""

    step: int
    online: Network
    average: Network
    method: Method[Any]

    @classmethod
    def load(cls, path: Path, settings: RunSettings) -> "Snapshot":
        """Read one file of a run's folder `snapshots`."""
        saved = read_saved(path)
        device = choose_device(settings.runtime.device)
        with damage_named(path):
            method, (online, average) = rebuild(saved, settings, device, "online", "average")
            method.load_state_dict(saved.section("method"))
            return cls(int(saved.facts["step"]), online, average, method)


def read_saved(path: Path) -> Checkpoint:
    """The tensors and facts of a model or snapshot."""
    with damage_named(path):
        return unpack(path.read_bytes())


def rebuild(
    saved: Checkpoint, settings: RunSettings, device: torch.device, *sections: str
) -> tuple[Method[Any], list[Network]]:
    """The method that the tensors were trained with, its buffers empty, and saved networks, ready to predict."""
    facts = saved.facts
    with torch.random.fork_rng(devices=[]):  # first weights are drawn and thrown away
        method, network = build_modules(
            settings,
            channels=facts["channels"],
            classes=len(facts["classes"]),
            labels=facts["labels"],
            images=facts["images"],
        )
    network.mixed = facts.get("mixed", False) and device.type == "cuda"  # the run's arithmetic, where that is fast
    networks = []
    for section in sections:
        network = copy.deepcopy(network)
        network.load_state_dict(saved.section(section))
        networks.append(network.eval().to(device))
    return method.to(device), networks


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """A damaged or missing file becomes one sentence."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # of `load_state_dict`, which lists every tensor
        raise AggMatchError(
            f"Cannot read {path}: its tensors do not fit the networks of aggmatch {__version__}. "
            f"Read it with the version that wrote it (see summary.json), or train again."
        ) from error
    except (OSError, ValueError, KeyError) as error:
        raise AggMatchError(f"Cannot read {path}: {error}.") from error
