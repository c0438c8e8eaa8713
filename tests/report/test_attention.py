"""The attention of aggregation: weights that make p̄, and their mean between classes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from aggmatch.methods.aggmatch.aggregation import EMPTY, aggregate
from aggmatch.methods.aggmatch.method import AggMatch, Config
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue
from aggmatch.report import attention as module
from aggmatch.report.attention import attention, class_attention, mean_by_class, panels, similarity, slot_classes
from aggmatch.report.pseudo_labels import pseudo_labels_at
from aggmatch.runs.stored import RunRecord


def filled_queue(rings: int = 3, slots: int = 8, classes: int = 3, fill: int = 5) -> ClassBalancedQueue:
    """A queue with `fill` random entries offered to every ring."""
    torch.manual_seed(0)
    queue = ClassBalancedQueue(rings=rings, slots=slots, features=4, classes=classes)
    ring = torch.arange(rings).repeat(fill)
    probs = torch.rand(len(ring), classes).softmax(-1)
    yes = torch.ones_like(ring, dtype=torch.bool)
    queue.enqueue(torch.randn(len(ring), 4), probs, ring, yes, torch.arange(len(ring)), ~yes)
    return queue


def queries() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(6, 4), torch.randn(6, 3).softmax(-1)


@pytest.mark.parametrize(
    "config",
    [
        Config(),
        Config(class_term="distance", class_weight=1.5),
        Config(class_term="none"),
        Config(feature_term=False),
    ],
)
@pytest.mark.parametrize("subsets", [1, 4, 7])
def test_the_weights_make_exactly_what_aggregation_returns(config, subsets):
    queue, (feature, probs) = filled_queue(), queries()
    memory = queue.split(subsets, torch.Generator().manual_seed(1))
    share = attention(similarity(feature, probs, queue, config).total, memory.slot, config.similarity_temperature)
    expected = aggregate(
        feature,
        probs,
        memory,
        temperature=config.similarity_temperature,
        feature_term=config.feature_term,
        class_term=config.class_term,
        class_weight=config.class_weight,
    )
    assert torch.allclose(share.sum(1), torch.ones(6), atol=1e-5)
    assert torch.allclose(share @ queue.probs[:-1], expected.probs, atol=1e-5)
    assert (share[:, 5:8] == 0).all(), "unfilled slots carry nothing"


def test_a_softmax_within_each_subset_and_the_mean_over_them():
    slots = torch.tensor([[0, 1], [2, EMPTY], [EMPTY, EMPTY]])
    score = torch.tensor([[math.log(3.0), 0.0, -5.0, 9.0]])
    assert attention(score, slots, 1.0).tolist() == [pytest.approx([0.375, 0.125, 0.5, 0])]
    assert attention(score, torch.full((2, 3), EMPTY), 1.0).tolist() == [[0, 0, 0, 0]]


def test_terms_are_the_cosine_and_minus_the_divergence():
    queue, (feature, probs) = filled_queue(), queries()
    terms = similarity(feature, probs, queue, Config(class_weight=0.5))
    assert torch.allclose(
        terms.feature[:, 0], F.cosine_similarity(feature, queue.feature[0].expand_as(feature)), atol=1e-6
    )
    same = similarity(feature, queue.probs[:6], queue, Config())
    assert torch.allclose(same.classes[:5].diagonal(), torch.zeros(5), atol=1e-6)
    apart = similarity(feature[:1], torch.tensor([[1.0, 0, 0]]), queue, Config(class_weight=2.0))
    assert apart.classes.min() >= -2 * math.log(2)
    assert apart.classes.max() <= 0


def test_means_are_taken_over_the_queries_of_a_class():
    to_class = torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0], [0.2, 0.2, 0.6]])
    mean = mean_by_class(to_class, torch.tensor([0, 0, 2]), 3)
    assert mean[0].tolist() == [0.75, 0.25, 0]
    assert mean[1].isnan().all()
    assert torch.allclose(mean[2], to_class[2])


def test_a_slot_belongs_to_its_ring_or_to_its_most_probable_class():
    balanced = filled_queue(rings=3, slots=4)
    assert slot_classes(balanced, 3).tolist() == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    single = filled_queue(rings=1, slots=4)
    assert slot_classes(single, 3).tolist() == single.probs[:4].argmax(1).tolist()


def last_maps(run: RunRecord, count: int, **changes: object) -> dict[str, NDArray[np.float32]]:
    """The maps of some unlabelled images by the last snapshot, perhaps with other settings of the method."""
    found = pseudo_labels_at(run, run.snapshots[-1])
    method: AggMatch = run.snapshot(run.snapshots[-1]).method  # type: ignore[assignment]
    method.config = replace(method.config, **changes)  # type: ignore[arg-type]
    assert found.feature is not None
    return class_attention(method, found.feature[:count], found.own[:count], found.truth[:count])


def test_rows_of_the_maps_sum_to_one(aggmatch_run: RunRecord):
    maps = last_maps(aggmatch_run, 150)
    assert list(maps) == ["feature term", "class term", "both"]
    for values in maps.values():
        assert values.shape == (10, 10)
        assert values.sum(1) == pytest.approx(torch.ones(10).numpy(), abs=1e-4)


def test_maps_do_not_depend_on_how_queries_are_batched(aggmatch_run: RunRecord, monkeypatch):
    whole = last_maps(aggmatch_run, 60)
    monkeypatch.setattr(module, "BATCH", 7)
    parts = last_maps(aggmatch_run, 60)
    assert parts["both"] == pytest.approx(whole["both"], abs=1e-5, nan_ok=True)


def test_a_term_that_the_run_does_not_use_is_not_shown(aggmatch_run: RunRecord):
    assert list(last_maps(aggmatch_run, 20, class_term="none")) == ["feature term"]


def test_only_runs_with_a_queue_get_a_panel_with_every_snapshot(rivals: list[RunRecord]):
    (panel,) = panels(rivals)
    assert panel.name == "attention-aggmatch-fold-0"
    titles = {axes.get_title(loc="left") for axes in panel.figure.axes}
    assert {"step 3", "step 15", "step 30"} <= titles
    assert "1,000 unlabelled images" in panel.caption
    assert "aggmatch on digits, 20 labels, fold 0" in panel.caption
