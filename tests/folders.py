"""Run folders written without training, so that a test decides every number in them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.conftest import dotted

from aggmatch.config import Layer
from aggmatch.data import draw_split, load
from aggmatch.runs.folder import RunFolder
from aggmatch.runs.log import Log
from aggmatch.settings import resolve

SUMMARY: dict[str, Any] = {
    "data": "digits",
    "labels": 40,
    "fold": 0,
    "seed": 0,
    "method": "fixmatch",
    "steps": 1000,
    "network": "average",
    "accuracy": 90.0,
    "accuracy_median_of_last_20": 89.5,
    "class_accuracy": dict.fromkeys("0123456789", 90.0),
    "accuracy_average": 90.0,
    "accuracy_online": 89.0,
    "seconds": 61.2,
    "hardware": "a CPU",
    "versions": {"aggmatch": "0.1.0", "torch": "2.11.0", "python": "3.11.7"},
    "finished": "2026-01-01T00:00:00+00:00",
}


def line(step: int, **values: Any) -> dict[str, Any]:
    """A line of the log."""
    return {"step": step, "seconds": step / 10, "loss": 1.0, "loss_labeled": 1.0, "images_per_second": 100.0, **values}


def write_folder(
    path: Path,
    records: Iterable[Mapping[str, Any]] = (),
    summary: Mapping[str, Any] | None = None,
    *,
    method: str = "fixmatch",
    **changes: Any,
) -> Path:
    """Write the folder of a run on digits with 40 labels.

    records: lines of its log. summary: changes to `SUMMARY`; without it the run is not finished. changes: settings,
    such as `data__fold=1`.
    """
    chosen = {"data.name": "digits", "data.labels": 40, "method.name": method, "recipe": "paper"}
    settings = resolve([Layer("the test", chosen | dotted(changes))])
    folder = RunFolder(path)
    folder.create(draw_split(load("digits", Path("nowhere")), settings.data).encoded(), settings.to_dict())
    with Log(folder.metrics) as log:
        for record in records:
            log.write(record)
    if summary is not None:
        folder.write_json(folder.summary, SUMMARY | {"method": method, "fold": settings.data.fold} | dict(summary))
    return path
