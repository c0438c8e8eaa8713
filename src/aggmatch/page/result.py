"""What a round of training leaves behind for the page: predictions, consensus, explanations, suggestions and doubts.

A round is a folder: `labels.jsonl` (the labels it learned from), `run` (an ordinary run folder), `status.json` (how far
it is), `result.npz` and `result.json` (written when training ends), and `checked.json` (written last).

Shapes: N images, Y classes, K stored examples that explain one image.
"""

import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggmatch.storage.files import write_atomically


class Round:
    """Paths of one round of training. Creating the object does not touch the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.labels = path / "labels.jsonl"
        self.run = path / "run"
        self.status = path / "status.json"
        self.arrays = path / "result.npz"
        self.result = path / "result.json"
        self.checked = path / "checked.json"
        self.log = path / "log.txt"

    @property
    def number(self) -> int:
        """Its number, by the name of the folder."""
        return int(self.path.name)


class Doubtful(NamedTuple):
    """A given label that other images contradict."""

    name: str
    """The image."""
    given: str
    suggested: str
    score: float


@dataclass(frozen=True, eq=False)
class Result:
    """Predictions of all images by the model of a round."""

    classes: list[str]
    names: list[str]
    """Paths of the images."""
    probs: NDArray[np.float32]
    """(N, Y)."""
    consensus: NDArray[np.float32]
    """Agreement of the stored examples on each image, or without them the largest probability, (N,)."""
    order: list[int]
    """Images that teach most, best first."""
    labeled: int = 0
    """Labels that the model learned from."""
    why: dict[str, NDArray[Any]] = field(default_factory=dict)
    """`source`, `share`, `held` (class) and `given` of the stored examples with most weight, each (N, K); `votes` and
    `refined`, each (N, Y). Empty if the method explains nothing."""

    @cached_property
    def position(self) -> dict[str, int]:
        """Path → position."""
        return {name: position for position, name in enumerate(self.names)}

    def write(self, folder: Round) -> None:
        """Write the files of the result; the last one says that all are there."""
        with folder.arrays.open("wb") as file:
            np.savez(file, probs=self.probs, consensus=self.consensus, **self.why)  # type: ignore[arg-type]
        facts = {"classes": self.classes, "names": self.names, "order": self.order, "labeled": self.labeled}
        write_json(folder.result, facts)

    @classmethod
    def read(cls, folder: Round) -> "Result | None":
        """Return the result of a round; None if it has none that can be read."""
        try:
            facts = json.loads(folder.result.read_bytes())
            with np.load(folder.arrays, allow_pickle=False) as arrays:
                held = {name: arrays[name] for name in arrays.files}
            result = cls(probs=held.pop("probs"), consensus=held.pop("consensus"), why=held, **facts)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return result if result.probs.shape == (len(result.names), len(result.classes)) else None


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(value).encode())


def read_json(path: Path) -> Any:
    """Return the content of a JSON file; None if it is not there or not readable."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
