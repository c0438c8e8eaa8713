"""Mean attention between classes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from aggmatch.inference import Snapshot
from aggmatch.report.figures import draw, features
from aggmatch.report.figures.features import attention_within, class_attention, mean_by_class
from aggmatch.report.pseudo_labels import pseudo_labels_at
from aggmatch.runs.stored import StoredRun


def test_means_are_taken_over_the_queries_of_a_class():
    to_class = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]])
    mean = mean_by_class(to_class, torch.tensor([0, 0, 2]), 3)
    assert mean[0].tolist() == [0.75, 0.25, 0]
    assert mean[1].isnan().all()
    assert torch.allclose(mean[2], to_class[2])


def last_maps(run: StoredRun, count: int, **changes: object) -> dict[str, NDArray[np.float32]]:
    """The maps of some unlabelled images by the last snapshot, perhaps with other settings of the method."""
    found = pseudo_labels_at(run, run.snapshots[-1])
    method = Snapshot.load(run.snapshots[-1], run.settings).method
    method.config = replace(method.config, **changes)
    explainer = method.explainer()
    assert explainer is not None
    assert found.feature is not None
    return class_attention(explainer, found.feature[:count], found.own[:count], found.truth[:count])


def test_rows_of_the_maps_sum_to_one(aggmatch_run: StoredRun):
    maps = last_maps(aggmatch_run, 150)
    assert list(maps) == ["feature term", "class term", "all"]
    for values in maps.values():
        assert values.shape == (10, 10)
        assert values.sum(1) == pytest.approx(torch.ones(10).numpy(), abs=1e-4)


def test_maps_do_not_depend_on_how_queries_are_batched(aggmatch_run: StoredRun, monkeypatch):
    whole = last_maps(aggmatch_run, 60)
    monkeypatch.setattr(features, "BATCH", 7)
    parts = last_maps(aggmatch_run, 60)
    assert parts["all"] == pytest.approx(whole["all"], abs=1e-5, nan_ok=True)


def test_a_term_that_the_run_does_not_use_is_not_shown(aggmatch_run: StoredRun):
    assert list(last_maps(aggmatch_run, 20, class_term="none")) == ["feature term"]


def test_a_run_that_explains_itself_has_a_plot_for_each_snapshot(rivals: list[StoredRun]):
    ((_, panel),) = draw(rivals, ["attention"])
    assert panel.name == "attention-aggmatch-fold-0"
    assert [plot.heading for plot in panel.plots] == ["Step 3", "Step 15", "Step 30"]
    assert [plot.name for plot in panel.plots] == ["step-3", "step-15", "step-30"]
    titles = [axes.get_title(loc="left").split(":")[0] for axes in panel.plots[0].figure.axes]
    assert titles[:3] == ["feature term", "class term", "all terms"]
    assert "1,000 unlabelled images" in panel.caption
    assert "aggmatch (paper recipe) on digits, 20 labels, fold 0" in panel.caption


# Within a batch ------------------------------------------------------------------------------------------------------


def test_attention_within_a_batch_equals_a_computation_image_by_image():
    generator = torch.Generator().manual_seed(0)
    feature, truth = torch.randn(23, 4, generator=generator), torch.arange(23) % 3
    rows = torch.zeros(20, 3)
    for image in range(20):  # two batches of ten; three images are left over
        others = [other for other in range(image // 10 * 10, image // 10 * 10 + 10) if other != image]
        cosines = torch.stack([torch.cosine_similarity(feature[image], feature[other], dim=0) for other in others])
        for other, share in zip(others, torch.exp(cosines / 0.05) / torch.exp(cosines / 0.05).sum(), strict=True):
            rows[image, truth[other]] += share
    expected = torch.stack([rows[truth[:20] == label].mean(0) for label in range(3)])
    torch.testing.assert_close(attention_within(feature, truth, 3, 10), expected, atol=1e-5, rtol=1e-3)


def test_few_images_are_one_batch():
    feature = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 1.0], [0.0, 3.0]])
    within = attention_within(feature, torch.tensor([0, 0, 1, 1]), 2, 448)
    assert within.diagonal().tolist() == pytest.approx([1.0, 1.0])


def test_methods_with_and_without_a_memory_have_attention_within_a_batch(rivals: list[StoredRun]):
    panels = [panel for _, panel in draw(rivals, ["batch_attention"])]
    assert [panel.name for panel in panels] == [f"batch-attention-{run.name.replace(' ', '-')}" for run in rivals]
    for panel in panels:
        assert [plot.name for plot in panel.plots] == ["step-30"], "of several methods, the last snapshots"
        assert "random batches" in panel.caption


def test_a_run_alone_has_attention_within_a_batch_at_each_snapshot(rivals: list[StoredRun]):
    ((_, panel),) = draw([run for run in rivals if run.method == "fixmatch"], ["batch_attention"])
    assert [plot.name for plot in panel.plots] == ["step-3", "step-15", "step-30"]
