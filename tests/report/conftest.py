"""Runs of a few steps, pages on them, and fake figures, for several test files."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

import aggmatch
from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.report import figures
from aggmatch.report.figure import Panel, Plot, house_style, new_figure
from aggmatch.report.figures import features
from aggmatch.report.page import page
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.settings import resolve

QUICK: dict[str, object] = {
    "data.name": "digits",
    "data.labels": 20,
    "recipe": "paper",
    "model.name": "small-4",
    "train.steps": 12,
    "train.batch": 10,
    "train.unlabeled_ratio": 2,
    "train.log_every": 4,
    "train.evaluate_every": 6,
    "runtime.snapshots": [1.0],
}


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> dict[str, Path]:
    """Finished runs of two methods on digits, of a few steps."""
    place = tmp_path_factory.mktemp("runs")
    for method in ("aggmatch", "supervised"):
        queue = {"method.slots": 8, "method.subsets": 2} if method == "aggmatch" else {}
        settings = resolve([Layer("the test", QUICK | queue | {"method.name": method})])
        deque(aggmatch.start(settings, place / method).train(), maxlen=0)
    return {method: place / method for method in ("aggmatch", "supervised")}


class FakeFigures:
    """Stands in for the registry of figures and for `draw`: one figure for each chapter, quick to draw."""

    def __init__(self) -> None:
        self.figures = {
            f"{chapter}_figure": figures.Figure(self.panels(chapter), chapter, "its log", quick=chapter == "training")
            for chapter in figures.CHAPTERS
        }

    def panels(self, chapter: str) -> Callable[[Sequence[StoredRun]], Iterator[Panel]]:
        """Draws two plots, of which only the second has a heading."""

        def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
            with house_style():
                drawn = [new_figure(3.0, 1.0), new_figure(1.0, 1.0)]
                drawn[0].subplots().plot([0, 1])
            plots = [Plot("line", drawn[0]), Plot("empty", drawn[1], runs[0].name)]
            yield Panel(f"fake-{chapter}", f"The title of {chapter}", f"The caption of {chapter}.", plots)

        return draw

    def names(self) -> list[str]:
        return list(self.figures)

    def load(self, name: str) -> figures.Figure:
        return self.figures[name]

    def draw(
        self, runs: Sequence[StoredRun], names: Sequence[str], *, missing: Callable[[str, str], None]
    ) -> Iterator[tuple[str, Panel]]:
        for name in names:
            try:
                for panel in self.figures[name].draw(runs):
                    yield name, panel
            except AggMatchError as error:
                missing(name, str(error))


@pytest.fixture
def fakes(monkeypatch) -> FakeFigures:
    """Within the test, the page draws fake figures: real ones take seconds."""
    fake = FakeFigures()
    monkeypatch.setattr(figures, "FIGURES", fake)
    monkeypatch.setattr(figures, "draw", fake.draw)
    return fake


@contextmanager
def first_features_for_tsne() -> Iterator[None]:
    """Within, the first two features replace t-SNE, which takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "tsne", lambda feature, start=None: feature[:, :2])
        yield


@pytest.fixture
def quick_map():
    with first_features_for_tsne():
        yield


@pytest.fixture(scope="session")
def one(trained) -> str:
    """The page on one run."""
    with first_features_for_tsne():
        return page(read_runs([trained["aggmatch"]]))


@pytest.fixture(scope="session")
def several(trained) -> str:
    """The page on two runs."""
    with first_features_for_tsne():
        return page(read_runs(list(trained.values())))


@pytest.fixture(scope="session")
def rival_folders(tmp_path_factory) -> list[Path]:
    """Finished runs of AggMatch and FixMatch on the same labels, with three snapshots each."""
    place = tmp_path_factory.mktemp("rivals")
    changes: dict[str, object] = {
        "train.steps": 30,
        "train.seed": 1,
        "runtime.snapshots": [0.1, 0.5, 1.0],
        "optim.average": 0.5,
    }
    own: dict[str, dict[str, object]] = {
        "aggmatch": {"method.slots": 16, "method.subsets": 4, "method.threshold": 0.5},
        "fixmatch": {"method.threshold": 0.15},
    }
    for method, chosen in own.items():
        settings = resolve([Layer("the test", QUICK | changes | chosen | {"method.name": method})])
        deque(aggmatch.start(settings, place / method).train(), maxlen=0)
    return [place / method for method in own]


@pytest.fixture(scope="session")
def rivals(rival_folders) -> list[StoredRun]:
    return read_runs(rival_folders)


@pytest.fixture(scope="session")
def aggmatch_run(rivals) -> StoredRun:
    return rivals[0]


@pytest.fixture(scope="session")
def fixmatch_run(rivals) -> StoredRun:
    return rivals[1]
