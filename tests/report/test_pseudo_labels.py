"""Pseudo labels by a snapshot: the network's own, and the refined ones of AggMatch."""

import pytest
import torch

from aggmatch.data import DataSet, Images, Split
from aggmatch.functional import consensus_confidence
from aggmatch.methods.aggmatch.aggregation import Aggregate
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.report import pseudo_labels as pseudo_labels_module
from aggmatch.report.pseudo_labels import (
    PseudoLabeled,
    deal,
    evenly,
    has_queue,
    look,
    pseudo_labels,
    pseudo_labels_at,
    unlabeled_images,
)
from aggmatch.runs.stored import RunRecord


def test_evenly_spaced_values_span_all_of_them():
    assert evenly(torch.arange(10), 5).tolist() == [0, 2, 4, 6, 8]
    assert evenly(torch.arange(3), 5).tolist() == [0, 1, 2]
    assert evenly(torch.arange(0), 5).tolist() == []


def test_labelled_images_are_not_looked_at_and_those_of_unknown_class_if_it_matters(
    toy_data: DataSet, monkeypatch: pytest.MonkeyPatch
):
    labels = toy_data.train.labels.clone()
    labels[7] = -1
    data = DataSet("toy", Images(toy_data.train.pixels, labels), toy_data.test, toy_data.classes, True)
    split = Split("toy", 3, 0, 90, torch.arange(6), labels[:6], torch.arange(0, 12))
    assert unlabeled_images(data, split, known=True).tolist() == [6, 8, 9, 10, 11]
    assert unlabeled_images(data, split, known=False).tolist() == [6, 7, 8, 9, 10, 11]
    monkeypatch.setattr(pseudo_labels_module, "IMAGES", 2)
    assert unlabeled_images(data, split, known=True).tolist() == [6, 9]


def test_own_predictions_are_those_of_the_online_network(rivals: list[RunRecord]):
    for run in rivals:
        snapshot = run.snapshot(run.snapshots[-1])
        index = torch.tensor([5, 700, 3])
        found = pseudo_labels(snapshot, run.data(), run.split(), index)
        with torch.no_grad():
            expected = snapshot.online.forward(run.data().train.pixels[index]).logits.softmax(-1)
        assert torch.allclose(found.own, expected, atol=1e-6)
        assert found.step == 30
        assert torch.equal(found.truth, run.data().train.labels[index])


def test_only_a_queue_refines(aggmatch_run: RunRecord, fixmatch_run: RunRecord):
    refined, own = (pseudo_labels_at(run, run.snapshots[-1]) for run in (aggmatch_run, fixmatch_run))
    assert has_queue(aggmatch_run)
    assert not has_queue(fixmatch_run)
    assert own.aggregated is None
    assert torch.equal(own.probs, own.own)
    assert torch.equal(own.confidence, own.own.amax(1))
    assert refined.aggregated is not None
    assert torch.equal(refined.probs, refined.aggregated.probs)
    assert torch.equal(refined.confidence, consensus_confidence(refined.aggregated.vote))
    assert not torch.allclose(refined.probs, refined.own, atol=0.01)


def test_refined_ones_are_what_the_method_itself_says(aggmatch_run: RunRecord):
    path = aggmatch_run.snapshots[1]
    found, snapshot = pseudo_labels_at(aggmatch_run, path), aggmatch_run.snapshot(path)
    output = look(snapshot.online, aggmatch_run.data().train.pixels[found.index])
    method: AggMatch = snapshot.method  # type: ignore[assignment]
    attended = method.attend(output.feature, output.logits.softmax(-1), deal(method))
    assert found.aggregated is not None
    assert torch.allclose(found.aggregated.probs, attended.probs, atol=1e-6)
    assert torch.equal(found.aggregated.vote, attended.vote), "all batches are dealt the same subsets"


def test_without_refinement_the_pseudo_label_is_the_networks_own():
    own, refined = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]])
    aggregated = Aggregate(refined, refined, torch.tensor([0.7]))
    one = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, aggregated, refines=True)
    other = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, aggregated, refines=False)
    assert one.right.tolist() == [True]
    assert other.right.tolist() == [False]
    assert float(other.confidence) == float(torch.tensor(0.7))
