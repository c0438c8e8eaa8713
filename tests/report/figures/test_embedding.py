"""Maps of the feature space."""

from typing import Any

import numpy as np
import pytest
import torch.nn.functional as F
from tests.folders import write_folder

from aggmatch.errors import AggMatchError
from aggmatch.inference import Snapshot
from aggmatch.report.figure import MANY, Panel
from aggmatch.report.figures import draw, features
from aggmatch.report.figures.features import draw_map, spaced, tsne
from aggmatch.report.pseudo_labels import run_network
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.settings import RuntimeSettings


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
    names, truth = [f"class {number}" for number in range(classes)], np.arange(classes)
    points = np.random.default_rng(0).random((classes + 1, 2)).astype(np.float32)
    figure = draw_map("step 1", points, truth, truth[:1], names)
    (key,) = figure.legends
    assert [text.get_text() for text in key.texts] == names
    assert len(set(looks_of(key.legend_handles))) == classes
    drawn: list[Any] = [dots.get_offsets() for dots in figure.axes[0].collections]
    assert sum(len(points) for points in drawn) == classes + 1


def test_the_first_and_the_last_snapshot_are_among_those_shown():
    assert spaced(7, 3) == [0, 3, 6]
    assert spaced(2, 3) == [0, 1]
    assert spaced(1, 3) == [0]
    assert spaced(3, 1) == [2], "the last one"


def panels(runs: list[StoredRun]) -> list[Panel]:
    return [panel for _, panel in draw(runs, ["embedding"])]


def scatters(panel: Panel) -> list[Any]:
    """Test images and labelled ones of the first map."""
    return list(panel.plots[0].figure.axes[0].collections)


def test_runs_side_by_side_have_a_map_of_their_last_snapshot(rivals: list[StoredRun], quick_map):
    shown = panels(rivals)
    assert [panel.name for panel in shown] == ["embedding-aggmatch-fold-0", "embedding-fixmatch-fold-0"]
    for panel in shown:
        titles = [axes.get_title(loc="left") for plot in panel.plots for axes in plot.figure.axes]
        assert titles == ["step 30"]
        assert [len(dots.get_offsets()) for dots in scatters(panel)] == [360, 20]
        assert "360 of 360 test images" in panel.caption
        assert "20 of 20 labelled training images" in panel.caption
        assert "average network" in panel.caption


def test_a_run_alone_has_a_map_of_each_snapshot(rivals: list[StoredRun], quick_map):
    (alone,) = panels(rivals[:1])
    titles = [axes.get_title(loc="left") for plot in alone.plots for axes in plot.figure.axes]
    assert titles == ["step 3", "step 15", "step 30"]


def test_large_data_sets_are_shown_by_evenly_spaced_images(aggmatch_run: StoredRun, quick_map, monkeypatch):
    for name, most in (("TESTED", 50), ("LABELED", 10), ("SNAPSHOTS", 2)):
        monkeypatch.setattr(features, name, most)
    (panel,) = panels([aggmatch_run])
    assert [len(dots.get_offsets()) for dots in scatters(panel)] == [50, 10]
    assert "50 of 360 test images" in panel.caption
    assert "10 of 20 labelled training images" in panel.caption
    assert [plot.name for plot in panel.plots] == ["step-3", "step-30"]


def test_at_most_six_hundred_points_are_mapped():
    assert features.TESTED <= 500
    assert features.LABELED <= 100
    assert features.SNAPSHOTS <= 8
    assert len(RuntimeSettings().snapshots) <= 3


def test_features_are_those_of_the_evaluated_network(aggmatch_run: StoredRun, quick_map):
    (panel,) = panels([aggmatch_run])
    snapshot = Snapshot.load(aggmatch_run.snapshots[0], aggmatch_run.settings)
    feature = F.normalize(run_network(snapshot.average, aggmatch_run.data().test.pixels).feature, dim=-1)
    assert np.allclose(scatters(panel)[0].get_offsets(), feature[:, :2].numpy(), atol=1e-6)


def test_dots_have_the_colour_of_their_class(aggmatch_run: StoredRun, quick_map):
    (panel,) = panels([aggmatch_run])
    test, labeled = scatters(panel)
    labels = aggmatch_run.data().test.labels.numpy()
    colors = test.get_facecolor()
    assert (colors[labels == 3][:, :3] == colors[labels == 3][0, :3]).all()
    assert not (colors[labels == 3][0, :3] == colors[labels == 4][0, :3]).all()
    given = int(aggmatch_run.split().labels[0])
    assert labeled.get_facecolor()[0, :3] == pytest.approx(colors[labels == given][0, :3])


def test_a_run_without_snapshots_has_no_map(tmp_path):
    assert not panels(read_runs([write_folder(tmp_path / "run")]))


@pytest.mark.parametrize(
    "feature",
    [
        np.full((60, 8), 0.5),
        np.zeros((60, 8)),
        np.full((60, 8), 0.5) + 1e-8 * np.random.default_rng(0).normal(size=(60, 8)),
        np.repeat(np.eye(2, 8), 30, 0),
        np.linspace(0, 1, 60)[:, None],
    ],
)
def test_a_collapsed_feature_space_has_a_map_too(feature):
    points = tsne(feature.astype(np.float32))
    assert points.shape == (60, 2)
    assert np.isfinite(points).all()
    ordinary = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    assert np.isfinite(tsne(ordinary, points)).all(), "the next map starts from this one"
    labels = np.arange(60) % 3
    draw_map("step 1", points, labels[:50], labels[50:], ("a", "b", "c")).draw_without_rendering()


def test_features_that_are_not_finite_have_no_map():
    with pytest.raises(AggMatchError, match="not finite"):
        tsne(np.full((60, 8), np.nan, np.float32))
