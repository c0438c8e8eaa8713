"""A small network from scratch on a CPU: AggMatch with other recipes and batches, on as few images as a user has.

    python benchmarks/from_scratch.py measure --data cifar10 --data-dir DIR --fold 10 --recipe neighbours [--batch 16]
    python benchmarks/from_scratch.py show                      # prints the table of results/from-scratch.json

Each fold draws 2,000 training and 2,000 test images, and 50 labels among the former. A run takes about five minutes.
"""

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from aggmatch import load, resolve, start
from aggmatch.data.images import Images
from aggmatch.evaluation import predict
from aggmatch.storage.files import write_atomically
from aggmatch.tables import Table

RESULTS = Path(__file__).parents[1] / "results/from-scratch.json"
IMAGES, LABELS = 2000, 50
VIEWED = 600 * 16
"""Labelled images that a run learns from in all: 600 steps with 16, or fewer steps with more."""


def measure(name: str, data_dir: str, fold: int, recipe: str, batch: int) -> dict[str, Any]:
    """Train once, and return the accuracies on test images and on training images without a label, in percent."""
    data, generator = load(name, data_dir), torch.Generator().manual_seed(fold)

    def drawn(images: Images) -> Images:
        index = torch.randperm(len(images), generator=generator)[:IMAGES]
        return Images(images.pixels[index], images.labels[index])

    data = replace(data, train=drawn(data.train), test=drawn(data.test))
    own = {"model.name": "small-32", "optim.average": 0.99}
    own |= {"method.slots": 64, "method.subsets": 8, "method.disjoint": "images"}
    own |= {"runtime.device": "cpu", "runtime.threads": 1, "train.steps": VIEWED // batch, "train.batch": batch}
    settings = resolve({"data.name": name, "data.labels": LABELS, "data.fold": fold, "recipe": recipe, **own})
    with tempfile.TemporaryDirectory() as folder:
        run = start(settings, Path(folder) / "run", data=data)
        for record in run.train():
            print(record["step"], record.get("accuracy_average", ""), flush=True)
        result = run.folder.result() or {}
    free = torch.ones(len(data.train), dtype=torch.bool)
    free[run.split.labeled] = False
    right = predict(run.state.method, run.state.evaluated, data.train.pixels).argmax(1) == data.train.labels
    kept = ("data", "labels", "fold", "seed", "method", "recipe", "steps", "network", "accuracy", "seconds")
    about = {name: result[name] for name in (*kept, "hardware", "versions")}
    return {**about, "batch": batch, "unlabeled": round(100 * float(right[free].float().mean()), 2)}


def table(records: list[dict[str, Any]]) -> Table:
    """One row for each run."""
    columns = ["data", "fold", "recipe", "steps", "batch", "unlabeled", "accuracy", "seconds"]
    return Table(columns, [[record[name] for name in columns] for record in records])


def main() -> None:
    """Measure one run and add it to the results, or print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "show"])
    parser.add_argument("--data", default="cifar10")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--fold", type=int, default=10)
    parser.add_argument("--recipe", default="paper")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    records = json.loads(options.results.read_text(encoding="utf-8")) if options.results.exists() else []
    if options.what == "measure":
        records.append(measure(options.data, options.data_dir, options.fold, options.recipe, options.batch))
        text = "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"
        write_atomically(options.results, text.encode())
    print(table(records).markdown())


if __name__ == "__main__":
    main()
