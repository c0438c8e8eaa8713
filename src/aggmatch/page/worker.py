"""The process behind the page: prepares features, or trains one round and writes what the page shows.

`python -m aggmatch.page.worker JOB.json` runs it. Shapes: N images, D features, Y classes, K stored examples.
"""

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.augment.settings import ViewSettings
from aggmatch.config import Layer
from aggmatch.console import TimeLeft
from aggmatch.data.own.decode import printable
from aggmatch.data.own.pixels import decode_all
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import predict
from aggmatch.features.accuracy import judge
from aggmatch.features.active import find_doubts, suggest
from aggmatch.features.store import PLAIN
from aggmatch.methods import load_method
from aggmatch.methods.base import Explainer
from aggmatch.page.estimate import Estimate
from aggmatch.page.result import Doubtful, Result, Round, write_json
from aggmatch.progress import Progress, listening
from aggmatch.runs.stats import wilson
from aggmatch.settings import RunSettings, resolve_quick
from aggmatch.storage.cache import Cache
from aggmatch.storage.files import cache_folder
from aggmatch.tables import duration
from aggmatch.training.begin import start
from aggmatch.training.crossval import FEWEST, cross_validate, gain_of_doubling
from aggmatch.training.inputs import FeatureInputs, pretrained_store
from aggmatch.training.run import Run

PAUSE = 0.25
"""Seconds between two writes of the status."""
SOON = 5.0
"""Seconds below which no time left is shown."""
VIEWED = 20_000
"""Views of each kind that are cached in all, at least one of each image; see `settings_of`."""
SUGGESTED = 100
"""Images that are suggested at a time."""
EXPLAINED_BY = 8
"""K."""
BATCH = 500


class Status:
    """Writes how far the process is, a few times per second."""

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, 0.0

    def stage(self, title: str) -> Progress:
        """Begin a stage; return its progress callback."""
        self.write(title, 0, 0, "")
        rest = TimeLeft(0, 0)

        def report(done: int, total: int) -> None:
            rest.total = total
            rest.note(done)
            seconds = rest.seconds()
            left = "" if seconds is None or seconds < SOON else f"about {duration(seconds)} left"
            if time.monotonic() - self.written > PAUSE or done == total:
                self.write(title, done, total, left)

        return report

    def write(self, title: str, done: int, total: int, left: str) -> None:
        """Write the status now."""
        self.written = time.monotonic()
        write_json(self.path, {"stage": title, "done": done, "total": total, "left": left})


def settings_of(
    folder: str, labels: Path | None, images: int, changes: Iterable[tuple[str, dict[str, Any]]]
) -> RunSettings:
    """Return the settings of a round: the recipe of own images, all labels for training, then the user's changes.

    images: how many there are. A round sees each of many images a few times only, so that fewer views of each do, and
    features are ready sooner: with 50,000 images after three passes of the network instead of nine.
    """
    own = {"data.name": folder, "data.holdout": 0, "runtime.snapshots": [1.0], "train.evaluate_every": 2**20}
    own["views.cached"] = max(1, min(ViewSettings.cached, VIEWED // images))
    if labels:
        own["data.labels_file"] = str(labels)
    return resolve_quick([Layer("the label page", own), *(Layer(source, values) for source, values in changes)])


# Before the first labels ------------------------------------------------------------------------------------------


def prepare(settings: RunSettings, pixels: Tensor, names: list[str], out: Path) -> None:
    """Write which images to label first, then compute the features that training will need, so that it starts at once.

    out: the file of the suggestions.
    """
    store = pretrained_store(settings, pixels)
    order = suggest(store.plain(pixels), [], min(SUGGESTED, len(pixels)))
    write_json(out, {"names": [names[position] for position in order]})
    views = load_method(settings.method_name).views
    store.views(pixels, dict.fromkeys({*views.labeled, *views.unlabeled} - {PLAIN}, settings.views.cached))


def read_pixels(settings: RunSettings, files: list[str]) -> tuple[Tensor, list[str]]:
    """Return the pixels of the files that can be read, and their paths."""
    root = Path(settings.data.name)
    cache = Cache(cache_folder(settings.runtime.cache_dir) / "images")
    pixels, kept = decode_all([root / file for file in files], settings.data.side, 3, root=root, cache=cache)
    return pixels, [printable(files[position]) for position in kept]


# A round of training ----------------------------------------------------------------------------------------------


def train(settings: RunSettings, folder: Round, history: Path, status: Status) -> None:
    """Train on the labels of a round and write its result; then check it by cross-validation."""
    status.stage("Reading")
    data = settings.load_data()
    run = start(settings, folder.run, data=data)
    report = status.stage("Training")
    for record in run.train():
        report(record["step"], settings.train.steps)
    features = run.state.inputs.plain.cpu() if isinstance(run.state.inputs, FeatureInputs) else None
    status.stage("Predicting")
    result = make_result(run, features)
    result.write(folder)
    if features is not None:
        check(run, result, features, folder, history, status)
    else:
        write_json(folder.checked, {"estimate": None, "doubts": []})


@torch.no_grad()
def make_result(run: Run, features: Tensor | None) -> Result:
    """Return predictions, explanations and suggestions for all training images.

    features: (N, D), of a frozen backbone; None if there is none.
    """
    state, images = run.state, run.data.train
    inputs = images.pixels if features is None else features
    probs = predict(state.method, state.evaluated, inputs, threads=state.threads).numpy()
    explainer = state.method.explainer()
    why = explain_all(run, inputs, explainer) if explainer else {}
    consensus = why.pop("consensus") if why else probs.max(1)
    labeled = run.split.labeled.tolist()
    count = min(SUGGESTED, len(images) - len(labeled))
    order = [] if features is None else suggest(features, labeled, count, probs_NY=torch.from_numpy(probs))
    return Result(list(run.data.classes), list(images.names), probs, consensus, order, len(labeled), why)


def explain_all(run: Run, inputs: Tensor, explainer: Explainer) -> dict[str, NDArray[Any]]:
    """Return consensus, votes and the stored examples with most weight, for all images; see `Result.why`."""
    network, examples = run.state.online.eval(), explainer.examples()
    held, device = examples.probs.argmax(1), run.state.device
    parts: dict[str, list[Tensor]] = {}
    for part in inputs.split(BATCH):
        output = network(part.to(device))
        own = output.logits.softmax(-1)
        refined = explainer.refine(output.feature, own)
        share, slot = explainer.attention(output.feature, own).share["all"].topk(min(EXPLAINED_BY, examples.filled))
        found = {"consensus": refined.confidence, "votes": refined.vote, "refined": refined.probs, "share": share}
        found |= {"source": examples.source[slot], "held": held[slot], "given": examples.given[slot]}
        for name, tensor in found.items():
            parts.setdefault(name, []).append(tensor.cpu())
    return {name: torch.cat(tensors).numpy() for name, tensors in parts.items()}


def check(run: Run, result: Result, features: Tensor, folder: Round, history: Path, status: Status) -> None:
    """Estimate the accuracy and look for wrong labels, both with predictions by models that did not see the label."""
    report = status.stage("Estimating the accuracy")
    unseen = cross_validate(run, report)
    probs, labeled, labels = result.probs.copy(), run.split.labeled, run.split.labels
    for position, row in unseen.items():
        probs[position] = row
    given = dict(zip(labeled.tolist(), labels.tolist(), strict=True))
    estimate = measure(run, features, result, unseen, given)
    estimate = estimate and estimate._replace(gain=gain_of_doubling(features[labeled], labels))
    doubts = [
        Doubtful(
            result.names[doubt.index], result.classes[doubt.given], result.classes[doubt.suggested], float(doubt.score)
        )
        for doubt in find_doubts(features, labeled, labels, torch.from_numpy(probs))
    ]
    write_json(folder.checked, {"estimate": estimate and estimate._asdict(), "doubts": doubts})
    if estimate:
        with history.open("a", encoding="utf-8") as file:
            file.write(json.dumps(estimate._asdict()) + "\n")


def measure(
    run: Run, features: Tensor, result: Result, unseen: dict[int, NDArray[np.float32]], given: dict[int, int]
) -> Estimate | None:
    """Return the accuracy on test images if there are any, or else on images without a label; None if that is unknown.

    unseen, given: see `judge`.
    """
    if tested := len(run.data.test):
        accuracy = (run.folder.result() or {})["accuracy"]
        return Estimate(len(given), accuracy, *wilson(round(accuracy * tested / 100), tested), tested)
    return Estimate(len(given), *judge(features, result.probs, unseen, given)) if len(unseen) >= FEWEST else None


# The process ------------------------------------------------------------------------------------------------------


def end_with_server() -> None:
    """End this process when the server does, which has the other end of the standard input."""
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


def main(path: Path) -> None:
    """Do the job that a file describes: see `Rounds.begin`."""
    job = json.loads(path.read_bytes())
    folder = Round(Path(job["round"]))
    status = Status(folder.status)
    try:
        with listening(status.stage):
            if job["kind"] == "prepare":
                settings = settings_of(job["folder"], None, job["images"], job["changes"])
                if settings.train.backbone == "frozen":
                    prepare(settings, *read_pixels(settings, job["files"]), Path(job["suggestions"]))
            else:
                settings = settings_of(job["folder"], folder.labels, job["images"], job["changes"])
                train(settings, folder, Path(job["history"]), status)
    except AggMatchError as error:
        write_json(folder.status, {"error": str(error)})
        sys.exit(2)


if __name__ == "__main__":
    Thread(target=end_with_server, daemon=True).start()
    main(Path(sys.argv[1]))
