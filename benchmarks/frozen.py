"""Few labels on a frozen backbone: AggMatch beside classic learners, its estimated accuracy, and the speed of features.

    python benchmarks/frozen.py measure --data-dir DIR [--folds 0,1,2,3,4] [--labels 10,40,250]   # results/frozen.json
    python benchmarks/frozen.py speed --data-dir DIR          # features per second against the bare network
    python benchmarks/frozen.py show                          # prints the table

CIFAR-10 enlarged to 112 pixels. Each fold draws 2,000 training and 1,000 test images, and the labels among the former.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch import DataSet, load, resolve, start
from aggmatch.augment.settings import ViewSettings
from aggmatch.augment.views import Augmenter
from aggmatch.data.images import Images
from aggmatch.evaluation import predict
from aggmatch.features.store import FeatureStore, batch_of, in_parallel
from aggmatch.models import Network, build_network
from aggmatch.models.pretrained import freeze, load_pretrained
from aggmatch.storage.files import write_atomically
from aggmatch.tables import Table, show_mean
from aggmatch.training.crossval import estimate_accuracy
from aggmatch.training.run import Run

RESULTS = Path(__file__).parents[1] / "results/frozen.json"
BACKBONE, SIDE = "efficientnet-lite0", 112
TRAIN, TEST = 2000, 1000
ROUNDS = 5


def draw_pool(data_dir: str, fold: int) -> DataSet:
    """Return the enlarged training and test images of one fold."""
    data, generator = load("cifar10", data_dir), torch.Generator().manual_seed(fold)

    def drawn(images: Images, count: int) -> Images:
        index = torch.randperm(len(images), generator=generator)[:count]
        return Images(enlarged(images.pixels[index]), images.labels[index])

    return replace(data, train=drawn(data.train, TRAIN), test=drawn(data.test, TEST))


def enlarged(pixels: Tensor) -> Tensor:
    """Return uint8 images (N, C, H, W) at the side of the benchmark."""
    return F.interpolate(pixels.float(), (SIDE, SIDE), mode="bicubic").clamp(0, 255).round().byte()


def measure(data: DataSet, fold: int, labels: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Return the test accuracies of AggMatch and of classic learners, and the estimate for images without a label.

    changes: settings other than the recipe's.
    """
    settings = {"data.name": "cifar10", "data.labels": labels, "data.fold": fold, "model.name": BACKBONE}
    with tempfile.TemporaryDirectory() as folder:
        run = start(resolve(settings | {"train.backbone": "frozen"} | changes), Path(folder) / "run", data=data)
        for _ in run.train():
            pass
        result = run.folder.result() or {}
        judged = estimate_accuracy(run)
    if judged is not None:  # one label of each class cannot be left out
        result["unlabeled"] = round(unlabeled_accuracy(run), 1)
        result["estimated"] = {name: round(value, 1) for name, value in judged._asdict().items()}
    kept = ("labels", "fold", "method", "steps", "network", "accuracy", "probes", "unlabeled", "estimated")
    about = ("seconds", "hardware", "versions")
    return {name: result[name] for name in kept + about if name in result} | ({"changes": changes} if changes else {})


def unlabeled_accuracy(run: Run) -> float:
    """Return the accuracy on the images without a label, in percent."""
    free = torch.ones(len(run.data.train), dtype=torch.bool)
    free[run.split.labeled] = False
    state = run.state
    probs_NY = predict(state.method, state.evaluated, state.inputs.plain[torch.arange(len(free))])
    return 100 * float((probs_NY.argmax(1) == run.data.train.labels)[free].float().mean())


def measure_speed(data: DataSet) -> dict[str, float]:
    """Return images per second of the bare backbone and of weak and strong views with everything around it.

    Rounds of both follow each other, so that other work on the machine slows all of them. Medians of the rounds.
    """
    network = build_network(BACKBONE, channels=3, classes=10, use="frozen")
    assert network.frozen is not None
    load_pretrained(network.frozen, BACKBONE, None)
    freeze(network.frozen)
    network.normalize_by(data.train.pixels)
    pixels = data.train.pixels[:600]
    normalized = network.normalized(pixels).contiguous(memory_format=torch.channels_last)
    batches = normalized.split(batch_of(network, pixels.shape[-1]))
    speeds: dict[str, list[float]] = {"bare": [], "weak": [], "strong": []}
    for number in range(ROUNDS):
        speeds["bare"].append(len(pixels) / seconds(lambda: bare(network, batches)))
        for view in ("weak", "strong"):
            with tempfile.TemporaryDirectory() as folder:
                store = FeatureStore(network, Augmenter(ViewSettings(), mirror=True), folder)
                taken = seconds(lambda store=store, view=view: store.views(pixels, {view: 1}))  # type: ignore[misc]
            speeds[view].append(len(pixels) / taken)
        print(f"round {number + 1}:", ", ".join(f"{name} {values[-1]:.0f}" for name, values in speeds.items()))
    return {name: median(values) for name, values in speeds.items()}


def bare(network: Network, batches: Sequence[Tensor]) -> None:
    """Pass batches of normalised images through the backbone alone, with the threads of the feature store."""
    frozen = network.frozen
    assert frozen is not None
    with torch.inference_mode():
        in_parallel(lambda position: frozen(batches[position]), len(batches), network.mean.device)


def seconds(work: Callable[[], object]) -> float:
    """Return how long a call takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def table(records: list[dict[str, Any]]) -> Table:
    """Mean ± deviation over folds for each number of labels."""
    learners = list(records[0]["probes"])
    rows = []
    for labels in sorted({record["labels"] for record in records}):
        group = [record for record in records if record["labels"] == labels]
        accuracies = [[record["accuracy"] for record in group]]
        accuracies += [[record["probes"][learner] for record in group] for learner in learners]
        times = [record["seconds"] for record in group]
        rows.append([labels, len(group), *(show_mean(values, 1) for values in accuracies), f"{median(times):.0f}"])
    return Table(["labels", "folds", "AggMatch", *learners, "seconds"], rows)


def estimates(records: list[dict[str, Any]]) -> Table:
    """How far the estimated accuracy is from the true one for each number of labels."""
    rows = []
    for labels in sorted({record["labels"] for record in records if "estimated" in record}):
        group = [record for record in records if record["labels"] == labels and "estimated" in record]
        pairs = [(record["unlabeled"], record["estimated"]) for record in group]
        true, estimated = mean(true for true, _ in pairs), mean(found["accuracy"] for _, found in pairs)
        wrong = mean(abs(true - found["accuracy"]) for true, found in pairs)
        width = mean(found["high"] - found["low"] for _, found in pairs)
        held = sum(found["low"] <= true <= found["high"] for true, found in pairs)
        numbers = [f"{value:.1f}" for value in (true, estimated, wrong, width)]
        rows.append([labels, *numbers, f"{held} of {len(group)}"])
    return Table(["labels", "true", "estimated", "difference", "width of the interval", "interval holds"], rows)


def main() -> None:
    """Run one part of the benchmark; `measure` leaves out what the results file has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "speed", "show"])
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--folds", default="0,1,2,3,4")
    parser.add_argument("--labels", default="10,40,250")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=JSON")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.what == "speed":
        speeds = measure_speed(draw_pool(options.data_dir, 0))
        print("share of the bare network:", {name: round(speeds[name] / speeds["bare"], 2) for name in speeds})
        return
    records = json.loads(options.results.read_text(encoding="utf-8")) if options.results.exists() else []
    if options.what == "measure":
        changes = {key: json.loads(value) for key, value in (word.split("=", 1) for word in options.set)}
        done = {(record["fold"], record["labels"]) for record in records}
        for fold in map(int, options.folds.split(",")):
            data = draw_pool(options.data_dir, fold)
            for labels in map(int, options.labels.split(",")):
                if (fold, labels) not in done:
                    records.append(measure(data, fold, labels, changes))
                    text = "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"
                    write_atomically(options.results, text.encode())
    print(table(records).markdown())
    print(estimates(records).markdown())


if __name__ == "__main__":
    main()
