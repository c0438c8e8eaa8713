"""Is the accuracy that the label page shows the true one? Simulate its loop and compare.

    python -m benchmarks.page_estimate measure --data-dir DIR    # writes results/active/estimate.json
    python -m benchmarks.page_estimate draw                      # prints the table of the documentation

Folders of CIFAR-10 images with 4 or 10 classes. An oracle gives the labels that the page suggests, and AggMatch learns
from them as on the page. The true accuracy is that on the images without a label. *Cross-validated* is the share of
labels that are right when they are left out; *estimated* is what the page shows.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from aggmatch import load
from aggmatch.features.accuracy import judge
from aggmatch.features.active import suggest
from aggmatch.page.worker import make_result, read_pixels, settings_of
from aggmatch.storage.annotations import encode, label_events
from aggmatch.storage.files import write_atomically
from aggmatch.tables import Table
from aggmatch.training.begin import start
from aggmatch.training.crossval import cross_validate
from aggmatch.training.inputs import FeatureInputs, pretrained_store

RESULTS = Path(__file__).parents[1] / "results/active/estimate.json"
BUDGETS = (20, 40, 60, 80, 100, 130, 160)
FOLDERS = {4: 500, 10: 800}
"""Classes → images of a folder."""


def write_folder(folder: Path, classes: int, data_dir: str, seed: int) -> dict[str, str]:
    """Write a folder of images; return file → class."""
    data, generator = load("cifar10", data_dir), np.random.default_rng(seed)
    chosen = generator.permutation(len(data.classes))[:classes]
    places = generator.permutation(np.flatnonzero(np.isin(data.train.labels.numpy(), chosen)))[: FOLDERS[classes]]
    folder.mkdir()
    truth = {}
    for number, place in enumerate(places.tolist()):
        pixels = data.train.pixels[place].permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(folder / f"{number:03d}.png")
        truth[f"{number:03d}.png"] = data.classes[int(data.train.labels[place])]
    return truth


def simulate(classes: int, data_dir: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the true accuracy and the estimates after each round."""
    with tempfile.TemporaryDirectory() as place:
        folder, labels = Path(place) / "photos", Path(place) / "labels.jsonl"
        truth = write_folder(folder, classes, data_dir, seed)
        pixels, order = read_pixels(settings := settings_of(str(folder), None, len(truth), ()), sorted(truth))
        store = pretrained_store(settings, pixels)
        order = [order[position] for position in suggest(store.plain(pixels), [], BUDGETS[0])]
        labeled: list[str] = []
        for budget in BUDGETS:
            labeled += [name for name in order if name not in labeled][: budget - len(labeled)]
            labels.write_bytes(b"".join(map(encode, label_events({name: truth[name] for name in labeled}))))
            settings = settings_of(str(folder), labels, len(truth), ())
            data = load(str(folder), side=settings.data.side, holdout=0, labels_file=str(labels))
            run = start(settings, Path(place) / str(budget), data=data)
            for _ in run.train():
                pass
            assert isinstance(run.state.inputs, FeatureInputs)
            features = run.state.inputs.plain.cpu()
            result = make_result(run, features)
            unseen = cross_validate(run, lambda done, total: None)
            given = dict(zip(run.split.labeled.tolist(), run.split.labels.tolist(), strict=True))
            free = [position for position in range(len(result.names)) if position not in given]
            guessed = [result.classes[k] for k in result.probs[free].argmax(1)]
            right = [guess == truth[result.names[position]] for guess, position in zip(guessed, free, strict=True)]
            left_out = [int(row.argmax()) == given[position] for position, row in unseen.items()]
            judged = judge(features, result.probs, unseen, given)
            yield {"classes": classes, "seed": seed, "labels": budget} | {
                key: round(float(value), 2)
                for key, value in {
                    "true": 100 * np.mean(right), "cross-validated": 100 * np.mean(left_out),
                    "estimated": judged.accuracy, "low": judged.low, "high": judged.high,
                }.items()
            }  # fmt: skip
            order = [result.names[position] for position in result.order]


def table(records: list[dict[str, Any]]) -> Table:
    """Means of all seeds, and how often the interval holds the true accuracy."""
    rows = []
    for classes, budget in sorted({(record["classes"], record["labels"]) for record in records}):
        some = [record for record in records if (record["classes"], record["labels"]) == (classes, budget)]
        means = [f"{np.mean([record[key] for record in some]):.0f}" for key in ("true", "cross-validated", "estimated")]
        held = sum(record["low"] <= record["true"] <= record["high"] for record in some)
        width = np.mean([record["high"] - record["low"] for record in some])
        rows.append([classes, budget, *means, f"{width:.0f}", f"{held} of {len(some)}"])
    columns = ["classes", "labels", "true", "cross-validated", "estimated", "width of the interval", "interval holds"]
    return Table(columns, rows, title="Accuracy in %")


def main() -> None:
    """Measure what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "draw"])
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--seeds", default="0,1")
    options = parser.parse_args()
    records: list[dict[str, Any]] = json.loads(RESULTS.read_bytes()) if RESULTS.exists() else []
    tasks = [(classes, int(seed)) for seed in options.seeds.split(",") for classes in FOLDERS]
    if options.what == "measure":
        torch.set_num_threads(1)
        for classes, seed in tasks:
            if not any((record["classes"], record["seed"]) == (classes, seed) for record in records):
                records += simulate(classes, options.data_dir, seed)
                text = "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"
                write_atomically(RESULTS, text.encode())
    print(table(records).markdown())


if __name__ == "__main__":
    main()
