"""Trained networks read from a run folder: the model, snapshots, and the newest checkpoint of an unfinished run."""

import copy
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypedDict

import torch
from torch import Tensor

from aggmatch import __version__
from aggmatch.config import Changes
from aggmatch.data import DataSet, Images, Split
from aggmatch.data.images import check_images
from aggmatch.devices import choose_device
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import Evaluation, evaluate, evaluating, predict, prepare
from aggmatch.methods import Method, build_modules
from aggmatch.models import Network, images_at_once
from aggmatch.models.pretrained import freeze
from aggmatch.registry import short_name
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.checkpoint import Checkpoint
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings
from aggmatch.validate import Count, Natural, Range, require

if TYPE_CHECKING:
    from aggmatch import Report
    from aggmatch.inference.inputs import ImagesLike


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """The network that a run saved, with the method that predicts with it.

    Example: `TrainedModel.load("runs/mine").predict(images).argmax(1)`.
    """

    network: Network
    method: Method[Any]
    classes: tuple[str, ...]
    """Names of the Y classes."""
    side: int
    """Height and width in pixels of the images that it takes."""
    settings: RunSettings
    folder: Path | None = None
    """Folder of its run; None if that is not kept."""

    def __repr__(self) -> str:
        data, method = short_name(self.settings.data.name), short_name(self.settings.method_name)
        place = f" in {self.folder}" if self.folder else ""
        return f"<TrainedModel{place}: {method} on {data}, {len(self.classes)} classes, {self.side}×{self.side} pixels>"

    @classmethod
    def load(cls, run: str | Path, changes: Changes = (), *, allow: Iterable[str] = ()) -> "TrainedModel":
        """Read the model of a run, or the newest checkpoint of a run that is not finished, with a warning.

        run: its folder. changes: settings of section `runtime`, for example the device.
        allow: code that the folder may name, such as `my_method.py:Mine`; other code of the folder is not imported.

        Example: `TrainedModel.load("runs/mine", {"runtime.device": "cpu"})`.
        """
        folder = RunFolder(Path(run))
        settings = folder.settings_here(changes, allow=allow)
        device = choose_device(settings.runtime.device)
        if folder.model.exists():
            place, saved, section = folder.model, read_saved(folder.model, restore_hint(folder)), "network"
        elif folder.result():
            raise AggMatchError(f"{folder.model} is missing, although the run is finished. {restore_hint(folder)}")
        else:
            place, saved, section = folder.checkpoints, newest_checkpoint(folder, settings), settings.train.evaluated
        weights = saved.tensors if section == "network" else saved.section(section)
        if not all(tensor.isfinite().all() for tensor in weights.values() if tensor.is_floating_point()):
            raise AggMatchError(f"{place} is corrupt: a value is not finite. {restore_hint(folder)}")
        with naming_errors_of(place):
            method, (network,) = rebuild(saved, folder, settings, device, section)
            for name in method.predictor:
                method.get_buffer(name).copy_(saved.tensors[f"method.{name}"])
        if section != "network" and type(method).prepare is not Method.prepare:  # the buffers fit the other network
            prepare(method, network, labeled_images(folder, settings), threads=settings.runtime.threads)
        return cls(network, method, tuple(saved.facts["classes"]), saved.facts["size"], settings, folder.path)

    def data(self, *, download: bool = False) -> DataSet:
        """The data set that it was trained on."""
        return self.settings.load_data(download=download)

    def predict(self, images: "Tensor | ImagesLike") -> Tensor:
        """Return class probabilities, (N, Y) on the CPU, in the order of `classes`.

        images: a uint8 tensor (N, C, side, side) on any device. Or something that is scaled first, as for training: an
        array of N images, PIL images, files, bytes, or a folder; see `inference.inputs.listed`. Values of arrays are
        from 0 to 255, or from 0 to 1 if none is above 1. Raises an `AggMatchError` if an image cannot be read.

        Example: `model.classes[model.predict("photo.jpg").argmax()]`.
        """
        if not isinstance(images, Tensor):
            return torch.cat([self.predict(part) for part in self.scaled(images)])
        check_images(images)
        shape, wanted = tuple(images.shape[1:]), (self.network.channels, self.side, self.side)
        if shape != wanted:
            raise AggMatchError(
                f"The model takes tensors of images of shape {wanted}, got {shape}. It scales NumPy arrays, PIL images "
                f"and files itself."
            )
        return predict(self.method, self.network, images, threads=self.settings.runtime.threads)

    def features(self, images: "Tensor | ImagesLike") -> Tensor:
        """Return features, (N, D) on the CPU: of the frozen backbone, or else those before the last layer.

        images: see `predict`. Example: `LogisticRegression().fit(model.features(files), labels)`.
        """
        if not isinstance(images, Tensor):
            return torch.cat([self.features(part) for part in self.scaled(images)])
        if self.network.frozen is not None:
            from aggmatch.features.store import embed_all

            return embed_all(self.network, images)
        return learned_features(self.network, images, self.settings.runtime.threads)

    def scaled(self, images: "ImagesLike") -> Iterator[Tensor]:
        """Yield batches of uint8 images (B, C, side, side)."""
        from aggmatch.inference.inputs import listed, pixel_batches

        return pixel_batches(listed(images), self.side, self.network.channels)

    def predict_files(self, files: Sequence[Path]) -> Iterator[tuple[Path, Tensor]]:
        """Yield each file that can be read with its class probabilities, (Y,); images are scaled as in training."""
        from aggmatch.data.own.pixels import decode_in_turn

        for some, pixels in decode_in_turn(files, self.side, self.network.channels, images_at_once(self.side)):
            yield from zip(some, self.predict(pixels), strict=True)

    def evaluate(self, data: DataSet | str | Path) -> Evaluation:
        """Evaluate on the test images of a data set, or on a folder or .zip with one subfolder per class.

        Example: `model.evaluate("photos/test").accuracy`.
        """
        if isinstance(data, (str, Path)):
            from aggmatch.data.own.images import read_labeled

            cache_dir = self.settings.runtime.cache_dir
            images = read_labeled(Path(data), self.classes, self.side, self.network.channels, cache_dir=cache_dir)
        elif data.classes == self.classes:
            images = data.test
        else:
            own, other = ", ".join(self.classes), ", ".join(data.classes)
            raise AggMatchError(f"The model has the classes {own}, but {data.name} has {other}.")
        return evaluate(self.method, self.network, images, threads=self.settings.runtime.threads)

    def report(self) -> "Report":
        """Return the report on its run, which a notebook shows in full; see `aggmatch.show_report`."""
        from aggmatch import show_report  # a layer above this one

        return show_report(self)


def learned_features(network: Network, pixels: Tensor, threads: int) -> Tensor:
    """Return the features v of a trained network, (N, D), on the CPU."""
    with evaluating(network, threads) as device:
        batches = pixels.split(images_at_once(pixels.shape[-1]))
        return torch.cat([network(batch.to(device)).feature.cpu() for batch in batches])


@dataclass(frozen=True)
class Snapshot:
    """Both networks and the method, with its memory such as AggMatch's queue, as they were after a step."""

    step: int
    online: Network
    average: Network
    method: Method[Any]

    @classmethod
    def load(cls, path: Path, settings: RunSettings) -> "Snapshot":
        """Read one file in the folder `snapshots` of a run with these settings."""
        saved = read_saved(path, "Copy it back, or delete it: figures use the other snapshots.")
        return cls.restore(saved, RunFolder(path.parent.parent), path, settings)

    @classmethod
    def newest(cls, folder: RunFolder, settings: RunSettings) -> "Snapshot":
        """Read the newest checkpoint of an unfinished run with these settings, with a warning."""
        return cls.restore(newest_checkpoint(folder, settings), folder, folder.checkpoints, settings)

    @classmethod
    def restore(cls, saved: Checkpoint, folder: RunFolder, place: Path, settings: RunSettings) -> "Snapshot":
        """Rebuild networks and method from what was saved in the folder of a run; errors name the place."""
        device = choose_device(settings.runtime.device)
        with naming_errors_of(place):
            method, (online, average) = rebuild(saved, folder, settings, device, "online", "average")
            method.load_state_dict(saved.section("method"))
            return cls(saved.facts["step"], online, average, method)


def newest_checkpoint(folder: RunFolder, settings: RunSettings) -> Checkpoint:
    """Read the newest checkpoint of an unfinished run, with the facts from which its networks are rebuilt.

    Warns that the run is not finished. Checkpoints of older versions lack the facts, which then come from the data set.
    """
    saved = checkpoints.load_newest(folder.checkpoints)
    if saved is None:
        raise AggMatchError(f"{folder.path} has no model and no checkpoint yet. Resume it.", options="--resume")
    done, steps = saved.facts["step"], settings.train.steps
    warnings.warn(f"{folder.path} is not finished: using its checkpoint of step {done:,} of {steps:,}.", stacklevel=3)
    if "classes" in saved.facts:
        return saved
    data = settings.load_data()
    _, channels, size, _ = data.train.pixels.shape
    counts = {"images": len(data.train), "labels": len(Split.read(folder.split, data).labeled)}
    return Checkpoint(
        saved.tensors, {**saved.facts, "classes": data.classes, "channels": channels, "size": size, **counts}
    )


def labeled_images(folder: RunFolder, settings: RunSettings) -> Images:
    """The labelled images of a run with their given labels, which some methods need to predict."""
    data = settings.load_data()
    split = Split.read(folder.split, data)
    return Images(data.train.pixels[split.labeled], split.labels)


def restore_hint(folder: RunFolder) -> str:
    """How to get a missing or corrupt model back."""
    return f"Copy it back, or delete it and {folder.summary.name} and resume the run."


class Facts(TypedDict):
    """What a model or snapshot must say about itself; see `Run.facts`."""

    classes: list[str]
    channels: Literal[1, 3]
    size: Annotated[int, Range(1, 2**14)]
    labels: Count
    images: Annotated[int, Range(1, 2**32)]
    step: Natural
    mixed: NotRequired[bool]


def read_saved(path: Path, advice: str = "") -> Checkpoint:
    """Read the tensors and facts of a model or snapshot; `advice` follows the message about a corrupt file."""
    saved = checkpoints.read(path, advice)
    require(saved.facts, Facts, path)
    return saved


def rebuild(
    saved: Checkpoint, folder: RunFolder, settings: RunSettings, device: torch.device, *sections: str
) -> tuple[Method[Any], list[Network]]:
    """Return the method with new buffers, and the saved networks under the named sections, ready to predict."""
    facts = saved.facts
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced
        counts = {name: facts[name] for name in ("channels", "labels", "images")}
        method, network = build_modules(
            settings.model,
            settings.train.backbone,
            settings.method_name,
            settings.method,
            classes=len(facts["classes"]),
            **counts,
        )
    if network.frozen is not None:
        freeze(network.frozen, checkpoints.read(folder.backbone).tensors)
    network.mixed = facts.get("mixed", False) and device.type == "cuda"  # bfloat16 is slow on a CPU
    networks = []
    for section in sections:
        network = copy.deepcopy(network)
        network.load_state_dict(saved.section(section))
        networks.append(network.eval().to(device))
    return method.to(device), networks


@contextmanager
def naming_errors_of(path: Path) -> Iterator[None]:
    """Turn the errors of networks that are not those in a file into one `AggMatchError` that names it."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:  # from `load_state_dict`, with a list of all tensors
        raise AggMatchError(
            f"Cannot read {path}: its tensors do not fit the networks of aggmatch {__version__}. "
            f"Use the version that wrote it (see summary.json), or train again."
        ) from error
    except KeyError as error:
        raise AggMatchError(f"Cannot read {path}: it lacks {error}.") from error
