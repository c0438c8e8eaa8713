"""Maps of the feature space."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.folders import write_folder

from aggmatch.data import DataSet, Images
from aggmatch.report.embedding import draw, panels, tsne
from aggmatch.report.figure import MANY, Panel
from aggmatch.report.pseudo_labels import look
from aggmatch.runs.stored import RunRecord, read_runs


def two_groups() -> np.ndarray:
    generator = np.random.default_rng(0)
    return np.concatenate([generator.normal(place, 0.1, (20, 5)) for place in (0, 3)]).astype(np.float32)


def test_groups_that_are_apart_stay_apart():
    points = tsne(two_groups())
    assert points.shape == (40, 2)
    middles = points[:20].mean(0), points[20:].mean(0)
    spread = max(points[:20].std(), points[20:].std())
    assert np.linalg.norm(middles[0] - middles[1]) > 2 * spread


def test_a_map_starts_from_the_one_before(monkeypatch):
    given: dict[str, Any] = {}

    class Recorded:
        def __init__(self, **settings: Any) -> None:
            given.update(settings)

        def fit_transform(self, feature: np.ndarray) -> np.ndarray:
            return feature[:, :2]

    monkeypatch.setattr("sklearn.manifold.TSNE", Recorded)
    before = tsne(two_groups())
    assert given["init"] == "pca"
    tsne(two_groups(), before)
    start = given["init"]
    assert start.mean(0) == pytest.approx(0, abs=1e-9)
    assert start[:, 0].std() == pytest.approx(1e-4, rel=1e-3)
    assert np.corrcoef(start.ravel(), (before - before.mean(0)).ravel())[0, 1] == pytest.approx(1)


def looks_of(handles: list[Any]) -> list[tuple[str, str]]:
    return [(handle.get_color(), handle.get_marker()) for handle in handles]


@pytest.mark.parametrize("classes", [3, MANY])
def test_every_class_is_named_once_with_a_colour_and_mark_of_its_own(classes):
    images = Images(torch.zeros(classes, 1, 2, 2, dtype=torch.uint8), torch.arange(classes))
    data = DataSet("toy", images, images, tuple(f"class {number}" for number in range(classes)), False)
    truth = np.arange(classes)
    figure = draw({1: np.random.default_rng(0).random((classes + 1, 2)).astype(np.float32)}, truth, truth[:1], data)
    (key,) = figure.legends
    assert [text.get_text() for text in key.texts] == list(data.classes)
    assert len(set(looks_of(key.legend_handles))) == classes
    drawn: list[Any] = [dots.get_offsets() for dots in figure.axes[0].collections]
    assert sum(len(points) for points in drawn) == classes + 1


def scatters(panel: Panel) -> list[Any]:
    """Test images and labelled ones of the first map."""
    return list(panel.figure.axes[0].collections)


def test_every_run_with_snapshots_gets_a_map_of_each(rivals: list[RunRecord], quick_map):
    shown = list(panels(rivals))
    assert [panel.name for panel in shown] == ["embedding-aggmatch-fold-0", "embedding-fixmatch-fold-0"]
    for panel in shown:
        assert [axes.get_title(loc="left") for axes in panel.figure.axes] == ["step 3", "step 15", "step 30"]
        assert [len(dots.get_offsets()) for dots in scatters(panel)] == [360, 20]
        assert "360 test images" in panel.caption
        assert "20 of 20 labelled training images" in panel.caption
        assert "average network" in panel.caption


def test_features_are_those_of_the_evaluated_network(aggmatch_run: RunRecord, quick_map):
    (panel,) = panels([aggmatch_run])
    snapshot = aggmatch_run.snapshot(aggmatch_run.snapshots[0])
    feature = F.normalize(look(snapshot.average, aggmatch_run.data().test.pixels).feature, dim=-1)
    assert np.allclose(scatters(panel)[0].get_offsets(), feature[:, :2].numpy(), atol=1e-6)


def test_dots_have_the_colour_of_their_class(aggmatch_run: RunRecord, quick_map):
    (panel,) = panels([aggmatch_run])
    test, labeled = scatters(panel)
    labels = aggmatch_run.data().test.labels.numpy()
    colors = test.get_facecolor()
    assert (colors[labels == 3][:, :3] == colors[labels == 3][0, :3]).all()
    assert not (colors[labels == 3][0, :3] == colors[labels == 4][0, :3]).all()
    given = int(aggmatch_run.split().labels[0])
    assert labeled.get_facecolor()[0, :3] == pytest.approx(colors[labels == given][0, :3])


def test_a_run_without_snapshots_has_no_map(tmp_path):
    assert not list(panels(read_runs([write_folder(tmp_path / "run")])))
