"""What a run takes from an earlier one: its settings when it resumes, its networks and test images when it starts from
it; and what has changed in a folder of images since.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from aggmatch.config import Changes, Layer, as_layers, differences, flatten
from aggmatch.data import DataSet, is_own_images
from aggmatch.data.images import UNKNOWN
from aggmatch.data.splits import read_content
from aggmatch.errors import AggMatchError
from aggmatch.features.self_training import LinearClassifier
from aggmatch.methods import METHODS, Method, load_method
from aggmatch.registry import absolute
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.checkpoint import Checkpoint
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings, parts_named
from aggmatch.storage.files import digest_of
from aggmatch.tables import plural
from aggmatch.training.trainer import Trainer
from aggmatch.validate import read_json

TAKEN = (
    "data.name",
    "data.labels_file",
    "data.side",
    "data.holdout",
    "method.name",
    "model.name",
    "model.weights",
    "model.side",
    "train.backbone",
)
"""Settings of an earlier run on which its networks and test images depend."""


# Resuming ---------------------------------------------------------------------------------------------------------


def resumed_settings(folder: RunFolder, changes: Changes, allow: Iterable[str] = ()) -> RunSettings:
    """Return the settings of a stored run with changes; raise an `AggMatchError` if these change what it computes."""
    asked = {key: value for layer in as_layers(changes) for key, value in layer.values.items()}
    allowed = [*allow, *parts_named(asked)]
    settings = stored = folder.settings(allow=allowed)
    method = absolute(str(asked.get("method.name", stored.method_name)))
    if method != stored.method_name:  # the other settings of the method would be unknown to this one
        changed = {"method.name": (stored.method_name, method)}
    else:
        settings = folder.settings(changes, allow=allowed)
        differing = differences(stored.to_dict(), settings.to_dict())
        changed = {key: pair for key, pair in differing.items() if not key.startswith("runtime.")}
    refuse_changes(folder, changed, "Drop the change, or choose another folder.")
    return settings


def check_files(folder: RunFolder, known: Mapping[str, Any]) -> None:
    """Raise an `AggMatchError` if configuration or split of a run are not those that the facts of a checkpoint name."""
    before, stored = flatten(known.get("configuration", {})), flatten(folder.read_config(intact=False))
    changed = {key: (old, stored[key]) for key, old in before.items() if key in stored and stored[key] != old}
    advice = f"Its newest checkpoint has the old values. Restore {folder.config}, or choose another folder."
    refuse_changes(folder, changed, advice)
    split = read_json(folder.split, dict[str, Any])
    if other := [name for name, digest in known.get("split", {}).items() if digest_of(split.get(name)) != digest]:
        raise AggMatchError(
            f"Cannot resume {folder.path}: {', '.join(other)} in {folder.split} changed since the last checkpoint. "
            f"Restore the file, or start a new run in another folder."
        )


def refuse_changes(folder: RunFolder, changed: Mapping[str, tuple[Any, Any]], advice: str) -> None:
    """Raise an `AggMatchError` that names changed settings, unless only own images or their table have moved.

    changed: dotted key → (before, now). The split checks whether images and labels are the same.
    """
    moved = {
        "data.name": all(map(is_own_images, map(str, changed.get("data.name", ())))),
        "data.labels_file": all(changed.get("data.labels_file", ())),
    }
    listed = [f"{key} was {old!r}, now {new!r}" for key, (old, new) in changed.items() if not moved.get(key)]
    if listed:
        raise AggMatchError(f"Cannot resume {folder.path}: {'; '.join(listed)}. {advice}")


def check_unchanged(folder: RunFolder, settings: RunSettings, data: DataSet | None = None) -> None:
    """Raise an `AggMatchError` if the images or labels of a folder of images are not those of a stored run.

    folder: of the stored run. settings: name the folder of images as it is now. data: its content, if it is read
    already. Other data sets, and runs on another folder, are not checked.
    """
    if not is_own_images(settings.data.name) or not folder.split.exists():
        return
    content = read_content(folder.split)
    unchanged = content.get("fingerprint")
    if content["data"] != settings.data.name or unchanged is None or (data and data.fingerprint == unchanged):
        return
    stored = folder.read_config().get("data", {})
    kept = {key: stored[key] for key in ("side", "holdout") if key in stored}
    if content.get("test_images"):
        kept["test_images"] = str(folder.split)
    data = replace(settings, data=replace(settings.data, **kept)).load_data()
    if data.fingerprint == unchanged:
        return
    labels = int((data.train.labels != UNKNOWN).sum())
    counted = {
        "class": (len(data.classes), content["classes"]),
        "label": (labels, len(content["labeled"]) if settings.data.labels is None else labels),
        "image": (len(data.train), content["images"]),
    }
    changes = [more_or_fewer(now - before, noun) for noun, (now, before) in counted.items() if now != before]
    raise AggMatchError(
        f"{folder.path} holds a run, and the folder changed: {', '.join(changes) or 'other images or labels'}; start a "
        f"new run from it (train.start_from), or one in another folder.",
        options=f"--from {folder.path}, or --out OTHER",
    )


def more_or_fewer(difference: int, noun: str) -> str:
    """Return a change of a number in words: 4 more labels, 1 fewer image."""
    number, _, thing = plural(abs(difference), noun).partition(" ")
    return f"{number} {'more' if difference > 0 else 'fewer'} {thing}"


# Starting from an earlier run -------------------------------------------------------------------------------------


def taken_settings(run: Path, allow: Iterable[str] = ()) -> Layer:
    """Return the settings that a run takes from the earlier run that it starts from.

    run: folder of the earlier run. allow: code that the folder may name; other code of it is not imported.

    Example: `resolve([taken_settings(Path("runs/mine")), Layer("", {"train.steps": 300})])`.
    """
    folder = RunFolder(run.resolve())
    if not folder.holds_run:
        raise AggMatchError(f"Cannot start from {run}: it holds no run. Name the folder of an earlier run.")
    settings = folder.settings(allow=allow)
    flat = flatten(settings.to_dict())
    taken = {key: flat[key] for key in TAKEN} | {"train.start_from": str(folder.path)}
    if is_own_images(settings.data.name):
        taken["data.test_images"] = str(folder.split)
    else:  # all labels of own images are used, and they are more now
        taken |= {key: flat[key] for key in ("data.labels", "data.fold")}
    return Layer(f"the run {run}", taken)


def stored_backbone(folder: RunFolder) -> Mapping[str, Tensor] | None:
    """Return the weights of the frozen backbone of a stored run; None if it has none."""
    return checkpoints.read(folder.backbone).tensors if folder.backbone.exists() else None


def take_networks(state: Trainer, folder: RunFolder, classes: tuple[str, ...]) -> None:
    """Copy both networks of a stored run into a run that has not begun.

    classes: of the new run. For a class that the stored one does not have, the classifier starts from random
    weights. The newest checkpoint is taken, or else the model.
    """
    saved, sections = newest(folder)
    before = tuple(saved.facts.get("classes", classes))
    if not set(before) & set(classes):
        raise AggMatchError(
            f"Cannot start from {folder.path}: its classes are {', '.join(before)}, but now they are "
            f"{', '.join(classes)}. Start without it (train.start_from)."
        )
    try:
        for network, section in zip((state.online, state.average), sections, strict=True):
            tensors = dict(saved.section(section))
            if before != classes:
                take_classes(tensors, network.classifier.state_dict(prefix="classifier."), before, classes)
            network.load_state_dict(tensors)
    except RuntimeError as error:
        raise AggMatchError(
            f"Cannot start from {folder.path}: its networks do not fit {state.settings.model.name} with the method "
            f"{state.settings.method_name}. Start without it (train.start_from), or with the settings of that run."
        ) from error


def taken_classifier(state: Trainer, folder: RunFolder) -> LinearClassifier | None:
    """Return the classifier of the average network of a stored run on frozen features, for these features as they are.

    None if it has other classes or another backbone than the run that has not begun, or if its method has predictions
    of its own or is code that this run does not name, which is not imported.
    """
    saved, (_, section) = newest(folder)
    tensors, stored, model = saved.section(section), folder.read_config(), state.settings.model
    backbone = [stored["model"].get(name) for name in ("name", "weights", "side")]
    if tuple(saved.facts.get("classes", ())) != state.data.classes or backbone != [
        model.name,
        model.weights,
        model.side,
    ]:
        return None
    method = stored["method"]["name"]
    if (
        method not in (state.settings.method_name, *METHODS.names())
        or load_method(method).predict is not Method.predict
    ):
        return None
    mean_D, deviation_D = tensors["backbone.mean"], tensors["backbone.deviation"]
    weight_YD = tensors["classifier.weight"] / deviation_D
    found = LinearClassifier(weight_YD, tensors["classifier.bias"] - weight_YD @ mean_D)
    return LinearClassifier(*(tensor.to(state.device) for tensor in found))


def newest(folder: RunFolder) -> tuple[Checkpoint, tuple[str, str]]:
    """Return the newest checkpoint of a stored run, or else its model, and its sections of the two networks."""
    saved = checkpoints.load_newest(folder.checkpoints)
    if saved is not None:
        return saved, ("online", "average")
    if not folder.model.exists():
        raise AggMatchError(f"Cannot start from {folder.path}: it has neither a checkpoint nor a model yet.")
    return checkpoints.read(folder.model), ("network", "network")


def take_classes(
    tensors: dict[str, Tensor], fresh: Mapping[str, Tensor], before: Sequence[str], classes: Sequence[str]
) -> None:
    """Replace the tensors of a classifier by those of other classes, of which it keeps the rows that it has.

    tensors: of a network with the classes `before`. fresh: of a new classifier for `classes`.
    """
    for key, tensor in fresh.items():
        old, tensors[key] = tensors[key].to(tensor.device), tensor.clone()
        for row, name in enumerate(classes):
            if name in before:
                tensors[key][row] = old[before.index(name)]


def free_folder(path: Path) -> Path:
    """Return the folder, or the first of FOLDER-2, FOLDER-3 and so on that holds no run."""
    number, free = 1, path
    while RunFolder(free).holds_run:
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
