"""Does it pay to label what `aggmatch suggest` names? Simulate the loop: label, train, choose the next images.

    python benchmarks/active.py measure --data-dir DIR [--seeds 0,1,2,3,4]    # writes results/active/logistic.json
    python benchmarks/active.py aggmatch --data-dir DIR                       # the same labels, trained by AggMatch
    python benchmarks/active.py doubts --data-dir DIR                         # finds flipped labels
    python benchmarks/active.py draw                                          # prints the tables and draws the figure

CIFAR-10: each seed draws a pool of 2,000 training and 1,000 test images; features are those of EfficientNet-Lite0.
Digits: each seed draws 1,000 of the 1,437 training images; features are their pixels. An oracle gives the labels, ten
at a time, from 10 to 100. All strategies start without a label.
"""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch import DataSet, Split, load, resolve, start
from aggmatch.evaluation import predict
from aggmatch.features.active import find_doubts, suggest
from aggmatch.inference.pool import early_features
from aggmatch.storage.files import write_atomically
from aggmatch.tables import Table, show_mean
from aggmatch.training.inputs import pretrained_store

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results/active"
FIGURE = ROOT / "docs/images/labelling.svg"
BUDGETS = range(10, 101, 10)
AGGMATCH_BUDGETS, AGGMATCH_STRATEGIES = (10, 40, 100), ("random", "suggested")
SIZES = {"cifar10": (2000, 1000), "digits": (1000, 360)}
FLIPPED = 0.2
Strategy = Callable[[Tensor, list[int], int, Tensor | None, int], list[int]]


# Images and features ----------------------------------------------------------------------------------------------


def draw_pool(name: str, data_dir: str, seed: int) -> DataSet:
    """Return the training and test images of one seed."""
    data, generator = load(name, data_dir), torch.Generator().manual_seed(seed)
    train, test = (
        part.take(torch.randperm(len(part), generator=generator)[:size].tolist())
        for part, size in zip((data.train, data.test), SIZES[name], strict=True)
    )
    return replace(data, train=train, test=test)


def features_of(data: DataSet) -> tuple[Tensor, Tensor]:
    """Return the features of training and test images."""
    if data.name == "digits":
        return data.train.pixels.flatten(1).float(), data.test.pixels.flatten(1).float()
    settings = resolve({"data.name": "cifar10", "model.name": "efficientnet-lite0", "train.backbone": "frozen"})
    store = pretrained_store(settings, data.train.pixels)
    return store.plain(data.train.pixels).float(), store.plain(data.test.pixels).float()


# Strategies -------------------------------------------------------------------------------------------------------


def choose_random(feature_ND: Tensor, labeled: list[int], count: int, _: Tensor | None, seed: int) -> list[int]:
    """The next images of a random order."""
    generator = torch.Generator().manual_seed(1000 + seed)
    order = torch.randperm(len(feature_ND), generator=generator).tolist()
    return [image for image in order if image not in set(labeled)][:count]


def choose_typical(feature_ND: Tensor, labeled: list[int], count: int, _: Tensor | None, seed: int) -> list[int]:
    """TypiClust (arXiv 2202.02794): the most typical image of each of the largest clusters without a label."""
    from sklearn.cluster import KMeans

    unit_ND = F.normalize(feature_ND, dim=1)
    near = (unit_ND @ unit_ND.T).topk(21, dim=1).values[:, 1:]
    typicality = 1 / (2 - 2 * near).clamp(min=0).sqrt().mean(1).clamp(min=1e-6)
    clusters = len(labeled) + count
    cluster = torch.from_numpy(KMeans(clusters, n_init=1, random_state=seed).fit_predict(unit_ND.numpy())).long()
    labels, sizes = cluster[labeled].bincount(minlength=clusters), cluster.bincount(minlength=clusters)
    typicality[labeled] = -1
    order = sorted(range(clusters), key=lambda number: (int(labels[number]), -int(sizes[number])))[:count]
    return [int(typicality.where(cluster == number, torch.tensor(-2.0)).argmax()) for number in order]


def choose_suggested(
    feature_ND: Tensor, labeled: list[int], count: int, probs_NY: Tensor | None, seed: int
) -> list[int]:
    """What `aggmatch suggest` names."""
    return suggest(feature_ND, labeled, count, probs_NY=probs_NY, seed=seed)


STRATEGIES: dict[str, Strategy] = {
    "random": choose_random,
    "TypiClust": choose_typical,
    "suggested": choose_suggested,
}
BALANCED = "random, equal per class"
"""For comparison: the usual draw of benchmarks, which needs to know the classes before they are labelled."""
COLUMNS = ("random", BALANCED, "TypiClust", "suggested")


def balanced(labels: Tensor) -> Strategy:
    """Return the strategy that takes the next image of every class, in a random order."""

    def choose(feature_ND: Tensor, labeled: list[int], count: int, _: Tensor | None, seed: int) -> list[int]:
        free = choose_random(feature_ND, labeled, len(feature_ND), None, seed)
        return [next(image for image in free if labels[image] == k) for k in range(10)][:count]

    return choose


# The loop ---------------------------------------------------------------------------------------------------------


def logistic_regression(feature_ND: Tensor, labeled: Sequence[int], labels: Tensor, inputs: Sequence[Tensor]) -> Any:
    """Return class probabilities of several inputs after training on the labelled images."""
    from sklearn.linear_model import LogisticRegression

    learner = LogisticRegression(C=100, max_iter=300)
    learner.fit(F.normalize(feature_ND[list(labeled)], dim=1).numpy(), labels.numpy())
    found = []
    for values in inputs:
        probs = torch.zeros(len(values), 10)
        probs[:, learner.classes_] = torch.from_numpy(learner.predict_proba(F.normalize(values, dim=1).numpy())).float()
        found.append(probs)
    return found


def simulate(name: str, data_dir: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield the accuracy of each strategy at each budget, with the images that it chose."""
    data = draw_pool(name, data_dir, seed)
    train, test = features_of(data)
    for strategy, choose in (STRATEGIES | {BALANCED: balanced(data.train.labels)}).items():
        labeled: list[int] = []
        probs = None
        for budget in BUDGETS:
            labeled += choose(train, labeled, budget - len(labeled), probs, seed)
            assert len(set(labeled)) == budget, f"{strategy} chose an image twice"
            probs, tested = logistic_regression(train, labeled, data.train.labels[labeled], (train, test))
            accuracy = 100 * float((tested.argmax(1) == data.test.labels).float().mean())
            classes = len(set(data.train.labels[labeled].tolist()))
            yield {"data": name, "learner": "logistic regression", "strategy": strategy, "seed": seed} | {
                "labels": budget, "classes": classes, "accuracy": round(accuracy, 2), "chosen": list(labeled)
            }  # fmt: skip


def train_aggmatch(data: DataSet, split: Split, out: Path) -> Any:
    """Train AggMatch on the frozen backbone, or from scratch on digits; return the finished run."""
    split.write(out / "split.json")
    frozen = {"train.backbone": "frozen", "model.name": "efficientnet-lite0"} if data.name == "cifar10" else {}
    changes = {"data.name": data.name, "data.split": str(out / "split.json")} | frozen
    run = start(resolve(changes), out / "run", data=data)
    for _ in run.train():
        pass
    return run


def given_split(data: DataSet, labeled: Sequence[int], labels: Tensor) -> Split:
    """Return a split with these labels."""
    index = torch.tensor(labeled, dtype=torch.int64)
    count = len(data.train)
    return Split(
        data.name,
        len(data.classes),
        0,
        count,
        index,
        labels,
        torch.arange(count),
        data.fingerprint,
        data.test_fingerprint,
    )


def with_aggmatch(record: dict[str, Any], data_dir: str) -> dict[str, Any]:
    """Return the record with AggMatch as the learner on the same labels."""
    data = draw_pool(record["data"], data_dir, record["seed"])
    split = given_split(data, record["chosen"], data.train.labels[record["chosen"]])
    with tempfile.TemporaryDirectory() as folder:
        run = train_aggmatch(data, split, Path(folder))
        return record | {"learner": "AggMatch", "accuracy": round(run.folder.result()["accuracy"], 2)}


def measure_doubts(name: str, data_dir: str, seed: int) -> Iterator[dict[str, Any]]:
    """Yield how well flipped labels are found among 100: by the features alone, and with AggMatch's predictions."""
    data = draw_pool(name, data_dir, seed)
    truth, generator = data.train.labels, torch.Generator().manual_seed(seed)
    labeled = [int(image) for k in range(10) for image in (truth == k).nonzero()[:10, 0]]
    labels = truth[labeled].clone()
    flipped = torch.randperm(100, generator=generator)[: round(100 * FLIPPED)]
    labels[flipped] = (labels[flipped] + torch.randint(1, 10, flipped.shape, generator=generator)) % 10
    with tempfile.TemporaryDirectory() as folder:
        run = train_aggmatch(data, given_split(data, labeled, labels), Path(folder))
        state, pixels = run.state, data.train.pixels
        frozen = state.online.frozen is not None
        features = features_of(data)[0] if frozen else early_features(run.folder, run.settings, pixels)
        probs = predict(state.method, state.evaluated, features if frozen else pixels)
    for judged_by, given in (("features", None), ("features and predictions", probs)):
        found = find_doubts(features, torch.tensor(labeled), labels, given)
        wrong = [int(truth[doubt.index]) != doubt.given for doubt in found]
        right = [int(truth[doubt.index]) == doubt.suggested for doubt in found]
        top = wrong[: len(flipped)]
        yield {
            "data": name,
            "seed": seed,
            "judged by": judged_by,
            "found": len(found),
            "precision": round(100 * sum(wrong) / max(len(wrong), 1), 2),
            "recall": round(100 * sum(wrong) / len(flipped), 2),
            "precision of the first 20": round(100 * sum(top) / max(len(top), 1), 2),
            "suggested class right": round(100 * sum(right) / max(sum(wrong), 1), 2),
        }


# Tables and figure ------------------------------------------------------------------------------------------------


def select(records: Sequence[dict[str, Any]], **wanted: Any) -> list[float]:
    """Return the accuracies of the records with these values."""
    return [record["accuracy"] for record in records if all(record[key] == value for key, value in wanted.items())]


def loop_table(records: Sequence[dict[str, Any]], name: str, learner: str) -> Table:
    """Mean ± deviation of each strategy at each budget."""
    budgets = sorted({record["labels"] for record in records if record["learner"] == learner})
    rows = []
    for budget in budgets:
        cells = [select(records, data=name, learner=learner, strategy=each, labels=budget) for each in COLUMNS]
        rows.append([budget, *(show_mean(cell, 1) if cell else None for cell in cells)])
    return Table(["labels", *COLUMNS], rows, title=f"{name}, {learner}")


def doubts_table(records: Sequence[dict[str, Any]]) -> Table:
    """Mean ± deviation of what was found."""
    keys = list(dict.fromkeys((record["data"], record["judged by"]) for record in records))
    columns = ["found", "precision", "recall", "precision of the first 20", "suggested class right"]
    rows = [
        [
            *key,
            *(show_mean([r[column] for r in records if (r["data"], r["judged by"]) == key], 1) for column in columns),
        ]
        for key in keys
    ]
    return Table(["data", "judged by", *columns], rows, title="20 of 100 labels flipped")


def draw(records: Sequence[dict[str, Any]]) -> bytes:
    """Draw accuracy against the number of labels, one plot for each data set."""
    import io

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    from aggmatch.report.style import BLUE, GREY, ORANGE, TEAL

    colors = {"random": GREY, BALANCED: TEAL, "TypiClust": ORANGE, "suggested": BLUE}
    names = list(dict.fromkeys(record["data"] for record in records))
    figure = Figure(figsize=(4 * len(names), 3.2), layout="constrained")
    for axes, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        for strategy, color in colors.items():
            by_budget = [
                select(records, data=name, learner="logistic regression", strategy=strategy, labels=budget)
                for budget in BUDGETS
            ]
            mean = np.array([np.mean(cell) for cell in by_budget])
            spread = np.array([np.std(cell, ddof=1) for cell in by_budget])
            axes.plot(list(BUDGETS), mean, color=color, marker="o", markersize=3, label=strategy)
            axes.fill_between(list(BUDGETS), mean - spread, mean + spread, color=color, alpha=0.15, linewidth=0)
        axes.set(title=name, xlabel="labels", ylabel="test accuracy %")
        axes.grid(alpha=0.2)
        axes.legend(frameon=False)
    buffer = io.BytesIO()
    with rc_context({"svg.hashsalt": "aggmatch"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def read(name: str) -> list[dict[str, Any]]:
    """Return the records of a results file; none if it does not exist yet."""
    path = RESULTS / name
    records: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    return records


def write(name: str, records: Sequence[dict[str, Any]]) -> None:
    """Write a results file, one record a line."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    text = "[\n" + ",\n".join(json.dumps(record) for record in records) + "\n]\n"
    write_atomically(RESULTS / name, text.encode())


def main() -> None:
    """Run one part of the benchmark; a part that was stopped goes on where it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["measure", "aggmatch", "doubts", "draw"])
    parser.add_argument("--data", default="cifar10,digits")
    parser.add_argument("--data-dir", default="data")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # classes without a label, slow convergence
    tasks = [(name, int(seed)) for name in options.data.split(",") for seed in options.seeds.split(",")]
    match options.what:
        case "measure":
            records = read("logistic.json")
            for name, seed in tasks:
                if not any((record["data"], record["seed"]) == (name, seed) for record in records):
                    records += simulate(name, options.data_dir, seed)
                    write("logistic.json", records)
        case "aggmatch":
            records = read("aggmatch.json")
            done = {(record["data"], record["seed"], record["strategy"], record["labels"]) for record in records}
            for record in read("logistic.json"):
                key = (record["data"], record["seed"], record["strategy"], record["labels"])
                wanted = record["labels"] in AGGMATCH_BUDGETS and record["strategy"] in AGGMATCH_STRATEGIES
                if key[:2] in tasks and wanted and key not in done:
                    records.append(with_aggmatch(record, options.data_dir))
                    write("aggmatch.json", records)
        case "doubts":
            records = read("doubts.json")
            for name, seed in tasks:
                if not any((record["data"], record["seed"]) == (name, seed) for record in records):
                    records += measure_doubts(name, options.data_dir, seed)
                    write("doubts.json", records)
        case "draw":
            records = read("logistic.json") + read("aggmatch.json")
            pairs = dict.fromkeys((record["data"], record["learner"]) for record in records)
            for table in [*(loop_table(records, *pair) for pair in pairs), doubts_table(read("doubts.json"))]:
                print(f"**{table.title}**\n\n{table.markdown()}")
            write_atomically(FIGURE, draw(read("logistic.json")))


if __name__ == "__main__":
    main()
