"""The result of a finished run: the content of `summary.json`."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import torch

from aggmatch.devices import provenance
from aggmatch.evaluation import Evaluation
from aggmatch.features.probes import probe_accuracies
from aggmatch.features.self_training import drawn
from aggmatch.runs.stats import median_of_last
from aggmatch.storage.files import digest
from aggmatch.training.linear_start import store_before

if TYPE_CHECKING:
    from aggmatch.training.run import Run


def summarize(run: "Run", final: Evaluation) -> dict[str, Any]:
    """Return the content of `summary.json`. final: of the reported network; not used without test images."""
    settings, state = run.settings, run.state
    tested = len(run.data.test) > 0
    records = run.folder.records()
    name = f"accuracy_{settings.train.evaluated}"
    median = median_of_last([record[name] for record in records if name in record])
    assert median or not tested, "every run with test images ends with an evaluation"
    last_log: dict[str, Any] = next((record for record in reversed(records) if "loss" in record), {})
    numbers = {key: value for key, value in last_log.items() if not isinstance(value, list)}
    probes = probe(run) if tested and settings.train.backbone != "scratch" else {}
    return {
        "data": settings.data.name,
        "labels": len(run.split.labeled),
        "fold": run.split.fold,
        "seed": settings.train.seed,
        "method": settings.method_name,
        "recipe": settings.recipe,
        "steps": state.steps_done,
        "network": settings.train.evaluated,
        "accuracy": final.accuracy if tested else None,
        "accuracy_median_of_last_20": median.value if median else None,
        "class_accuracy": accuracy_by_class(run.data.classes, final) if tested else {},
        **({} if tested else {"accuracy_average": None, "accuracy_online": None}),
        **({"probes": probes} if probes else {}),
        **{key: value for key, value in numbers.items() if key.startswith(("accuracy_", "pseudo_"))},
        "seconds": round(run.seconds, 1),
        **provenance(state.device, state.threads, run.processes.world),
        "finished": timestamp(),
        "metrics_digest": digest(run.folder.metrics.read_bytes()),
    }


def probe(run: "Run") -> dict[str, float]:
    """Return the test accuracies of classic learners on features of the pretrained backbone and the same labels."""
    store, split, test = store_before(run.state), run.split, run.data.test
    index = torch.cat([split.labeled, drawn(split.unlabeled, split.labeled)])  # of many images, a sample
    pixels = run.data.train.pixels[index]
    return probe_accuracies(
        store.plain(pixels), store.averaged(pixels), split.labels, store.plain(test.pixels), test.labels
    )


def accuracy_by_class(classes: Sequence[str], final: Evaluation) -> dict[str, float]:
    """Return the accuracy in percent of each class that has test images."""
    columns = zip(classes, final.class_accuracy, final.class_sizes, strict=True)
    return {name: accuracy for name, accuracy, images in columns if images}


def timestamp() -> str:
    """The current time in UTC, in ISO format."""
    return datetime.now(UTC).isoformat(timespec="seconds")
