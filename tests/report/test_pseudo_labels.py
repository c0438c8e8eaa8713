"""Pseudo labels by a snapshot: the network's own, the refined ones, and the changes between them."""

from pathlib import Path

import pytest
import torch
from tests.folders import write_folder

from aggmatch.data import DataSet, Images, Split
from aggmatch.errors import AggMatchError
from aggmatch.functional import Aggregate, consensus_confidence
from aggmatch.inference import Snapshot
from aggmatch.report import pseudo_labels as pseudo_labels_module
from aggmatch.report.pseudo_labels import (
    Changes,
    PseudoLabeled,
    changes,
    evenly,
    explained_runs,
    explains,
    most_changed,
    no_snapshots,
    pseudo_labels,
    pseudo_labels_at,
    run_network,
    unlabeled_images,
)
from aggmatch.runs.stored import StoredRun, read_runs


def test_evenly_spaced_values_span_all_of_them():
    assert evenly(torch.arange(10), 5).tolist() == [0, 2, 4, 6, 8]
    assert evenly(torch.arange(3), 5).tolist() == [0, 1, 2]
    assert evenly(torch.arange(0), 5).tolist() == []


def test_labelled_images_are_left_out_and_those_of_unknown_class_if_the_truth_matters(
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


def test_own_predictions_are_those_of_the_online_network(rivals: list[StoredRun]):
    for run in rivals:
        snapshot = Snapshot.load(run.snapshots[-1], run.settings)
        index = torch.tensor([5, 700, 3])
        found = pseudo_labels(snapshot, run.data(), run.split(), index)
        with torch.no_grad():
            expected = snapshot.online.forward(run.data().train.pixels[index]).logits.softmax(-1)
        assert torch.allclose(found.own, expected, atol=1e-6)
        assert found.step == 30
        assert torch.equal(found.truth, run.data().train.labels[index])


def test_only_a_method_that_explains_itself_refines(aggmatch_run: StoredRun, fixmatch_run: StoredRun):
    refined, own = (pseudo_labels_at(run, run.snapshots[-1]) for run in (aggmatch_run, fixmatch_run))
    assert explains(aggmatch_run)
    assert not explains(fixmatch_run)
    assert own.aggregated is None
    assert torch.equal(own.probs, own.own)
    assert torch.equal(own.confidence, own.own.amax(1))
    assert refined.aggregated is not None
    assert torch.equal(refined.probs, refined.aggregated.probs)
    assert torch.equal(refined.confidence, consensus_confidence(refined.aggregated.vote))
    assert not torch.allclose(refined.probs, refined.own, atol=0.01)


def test_refined_ones_are_what_the_method_itself_computes(aggmatch_run: StoredRun):
    path = aggmatch_run.snapshots[1]
    found, snapshot = pseudo_labels_at(aggmatch_run, path), Snapshot.load(path, aggmatch_run.settings)
    output = run_network(snapshot.online, aggmatch_run.data().train.pixels[found.index])
    explainer = snapshot.method.explainer()
    assert explainer is not None
    refined = explainer.refine(output.feature, output.logits.softmax(-1))
    assert found.aggregated is not None
    assert torch.allclose(found.aggregated.probs, refined.probs, atol=1e-6)
    assert torch.equal(found.aggregated.vote, refined.vote), "all batches see the same subsets"


def test_pseudo_labels_of_a_snapshot_are_computed_once_for_each_run(aggmatch_run: StoredRun, rival_folders: list[Path]):
    path = aggmatch_run.snapshots[-1]
    assert pseudo_labels_at(aggmatch_run, path) is pseudo_labels_at(aggmatch_run, path)
    (again,) = read_runs(rival_folders[:1])
    assert pseudo_labels_at(again, path) is not pseudo_labels_at(aggmatch_run, path)


def test_images_of_unknown_class_have_no_pseudo_labels_to_compare(aggmatch_run: StoredRun, monkeypatch):
    known, split = aggmatch_run.data(), aggmatch_run.split()
    unknown = Images(known.train.pixels, torch.full_like(known.train.labels, -1))
    monkeypatch.setattr(StoredRun, "data", lambda _: DataSet("dark", unknown, known.test, known.classes, False))
    monkeypatch.setattr(StoredRun, "split", lambda _: split)
    aggmatch_run.computed.clear()
    with pytest.raises(AggMatchError, match="true classes of the unlabelled images of digits"):
        pseudo_labels_at(aggmatch_run, aggmatch_run.snapshots[-1])
    assert len(pseudo_labels_at(aggmatch_run, aggmatch_run.snapshots[-1], known=False).index) > 0
    aggmatch_run.computed.clear()


def test_explained_runs_have_snapshots_and_a_method_that_explains(rivals: list[StoredRun], tmp_path):
    (bare,) = read_runs([write_folder(tmp_path / "run", method="aggmatch")])
    assert explained_runs([bare, *rivals]) == rivals[:1]


@pytest.mark.parametrize(
    ("summary", "kept", "words"), [(None, [1.0], "yet"), ({}, [1.0], "lost"), ({}, [], "runtime.snapshots")]
)
def test_the_reason_for_missing_snapshots_is_given(tmp_path, summary, kept, words):
    (run,) = read_runs([write_folder(tmp_path / "run", [], summary, runtime__snapshots=kept)])
    assert words in no_snapshots(run)


def test_without_refinement_the_pseudo_label_is_the_networks_own():
    own, refined = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.2, 0.8]])
    aggregated = Aggregate(refined, refined, torch.tensor([0.7]))
    one = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, aggregated, refines=True)
    other = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, aggregated, refines=False)
    assert one.right.tolist() == [True]
    assert other.right.tolist() == [False]
    assert float(other.confidence) == float(torch.tensor(0.7))


# Before and after refinement --------------------------------------------------------------------------------------


def sure(*rows: tuple[int, float]) -> torch.Tensor:
    """Distributions over three classes with a favourite and its probability."""
    probs = torch.stack([torch.full((3,), (1 - p) / 2) for _, p in rows])
    probs[range(len(rows)), [favorite for favorite, _ in rows]] = torch.tensor([p for _, p in rows])
    return probs


def test_changes_are_sorted_by_what_happened_to_the_true_class():
    truth = torch.tensor([0, 0, 0, 0, 0, 0])
    before = sure((1, 0.6), (1, 0.6), (0, 0.9), (0, 0.9), (0, 0.5), (1, 0.7))
    after = sure((0, 0.5), (0, 0.9), (1, 0.6), (1, 0.9), (0, 0.8), (2, 0.7))
    found = changes(before, after, truth)
    assert found.corrected.tolist() == [1, 0], "largest gain first"
    assert found.spoiled.tolist() == [3, 2], "largest loss first"
    assert found.kept.tolist() == [4], "from one wrong class to another is neither"
    assert found.count == 4


def test_the_snapshot_with_the_most_changes_is_chosen_and_the_later_of_equals():
    nothing, one = torch.arange(0), torch.arange(1)
    by_snapshot = {
        Path("a"): Changes(one, nothing, nothing),
        Path("b"): Changes(nothing, one, nothing),
        Path("c"): Changes(nothing, nothing, one),
    }
    assert most_changed(by_snapshot) == Path("b")
