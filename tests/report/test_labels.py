"""Single pseudo labels before and after aggregation, and FixMatch's mistakes that AggMatch avoids."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.folders import write_folder

from aggmatch.errors import AggMatchError
from aggmatch.report.labels import (
    BARS,
    Changes,
    changes,
    changes_of,
    corrected_mistakes,
    most_changed,
    panels,
    same_labels,
    shown_classes,
    spread,
)
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.runs.stored import RunRecord, read_runs


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
    assert found.spoilt.tolist() == [3, 2], "largest loss first"
    assert found.kept.tolist() == [4], "from one wrong class to another is neither"
    assert found.count == 4


def test_examples_are_a_few_of_each_kind():
    found = Changes(torch.tensor([9, 8, 7]), torch.tensor([6]), torch.arange(5))
    assert found.examples(2) == [("corrected", 9), ("corrected", 8), ("spoilt", 6), ("kept", 0), ("kept", 2)]


def test_the_snapshot_with_the_most_changes_is_chosen_and_the_later_of_equals():
    nothing, one = torch.arange(0), torch.arange(1)
    by_snapshot = {
        Path("a"): Changes(one, nothing, nothing),
        Path("b"): Changes(nothing, one, nothing),
        Path("c"): Changes(nothing, nothing, one),
    }
    assert most_changed(by_snapshot) == Path("b")


def test_confident_mistakes_that_the_other_has_right():
    truth = torch.tensor([0, 0, 0, 0, 0])
    index = torch.arange(5)
    rival = PseudoLabeled(
        1, index, truth, sure((1, 0.96), (1, 0.99), (1, 0.5), (0, 1.0), (2, 0.97)), None, refines=False
    )
    found = PseudoLabeled(1, index, truth, sure((0, 0.4), (0, 0.4), (0, 0.4), (1, 0.4), (1, 0.4)), None, refines=False)
    mistakes, corrected = corrected_mistakes(rival, found, 0.95)
    assert mistakes.tolist() == [1, 4, 0], "most confident first"
    assert corrected.tolist() == [1, 0]


def test_pairs_of_classes_take_turns():
    kinds = torch.tensor([7, 7, 7, 5, 5, 9])
    assert spread(torch.tensor([2, 0, 4, 1, 5, 3]), kinds).tolist() == [2, 4, 5, 0, 3, 1]
    assert spread(torch.arange(0), kinds).tolist() == []


def test_bars_are_shown_of_all_classes_or_of_the_largest_and_the_true_one():
    assert shown_classes([np.array([0.5, 0.5, 0.0], dtype=np.float32)], 2) == [0, 1, 2]
    probs = np.arange(100, dtype=np.float32)
    shown = shown_classes([probs, np.zeros_like(probs)], 3)
    assert shown == [3, *range(100 - BARS + 1, 100)]
    assert shown_classes([probs], -1) == list(range(100 - BARS, 100)), "where the truth is not known"


def test_only_runs_on_the_same_labels_are_held_against_each_other(rivals: list[RunRecord], tmp_path):
    assert same_labels(*rivals)
    other = write_folder(tmp_path / "run", data__labels=20, data__fold=1)
    (other / "snapshots").mkdir()
    (other / "snapshots/step-00000001.safetensors").touch()
    (stranger,) = read_runs([other])
    assert not same_labels(rivals[0], stranger)
    shown = panels([rivals[0], stranger])
    assert next(shown).name == "refinement-aggmatch-fold-0"
    with pytest.raises(AggMatchError, match="against aggmatch fold 0: no run of FixMatch here has the same labels."):
        next(shown)
    (bare,) = read_runs([write_folder(tmp_path / "bare", data__labels=20)])
    assert len(list(panels([rivals[0], bare]))) == 1, "without snapshots there is nothing to look at"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_mistakes_are_held_against_the_fold_with_the_same_labels(rival_folders: list[Path], tmp_path, order):
    other = write_folder(tmp_path / "other", method="aggmatch", data__labels=20, data__fold=1)
    shutil.copy(rival_folders[0] / "config.json", other)
    shutil.copytree(rival_folders[0] / "snapshots", other / "snapshots")
    folders = [rival_folders[0], rival_folders[1], other]
    names = [panel.name for panel in panels(read_runs([folders[number] for number in order]))]
    assert names[-1] == "mistakes-aggmatch-fold-0"
    assert len(names) == 2


def test_the_caption_counts_what_aggregation_did_at_every_snapshot(aggmatch_run: RunRecord):
    (panel,) = panels([aggmatch_run])
    assert panel.name == "refinement-aggmatch-fold-0"
    for path, found in changes_of(aggmatch_run).items():
        step = pseudo_labels_at(aggmatch_run, path).step
        assert f"step {step}: {len(found.corrected)} and {len(found.spoilt)}" in panel.caption
    columns = len(changes_of(aggmatch_run)[most_changed(changes_of(aggmatch_run))].examples(3))
    assert len(panel.figure.axes) == 3 * columns


def test_mistakes_are_shown_with_the_truth_and_both_labels(rivals: list[RunRecord]):
    _, panel = panels(rivals)
    theirs, ours = (pseudo_labels_at(run, run.snapshots[-1]) for run in reversed(rivals))
    mistakes, corrected = corrected_mistakes(theirs, ours, 0.15)
    assert f"for {len(mistakes)}; AggMatch has {len(corrected)} of these right" in panel.caption
    in_turn = spread(corrected, 10 * theirs.truth + theirs.own.argmax(1))[:8]
    assert [axes.texts[0].get_text() for axes in panel.figure.axes] == [f"{truth}" for truth in theirs.truth[in_turn]]
    first = int(corrected[0])
    texts = [text.get_text() for text in panel.figure.axes[0].texts]
    truth, mistaken = int(theirs.truth[first]), int(theirs.own[first].argmax())
    assert texts[:3] == [
        f"{truth}",
        f"{mistaken} ({theirs.own[first].max():.2f})",
        f"{truth} ({ours.confidence[first]:.2f})",
    ]
    assert truth != mistaken


def test_without_mistakes_to_correct_there_is_no_table_but_a_word(rivals: list[RunRecord], monkeypatch):
    nothing = torch.arange(0)
    monkeypatch.setattr("aggmatch.report.labels.corrected_mistakes", lambda *_: (nothing, nothing))
    shown = panels(rivals)
    assert next(shown).name == "refinement-aggmatch-fold-0"
    with pytest.raises(AggMatchError, match="no confident mistakes of fixmatch fold 0 that aggmatch fold 0 has right."):
        next(shown)


@pytest.mark.parametrize("method", ["fixmatch", "aggmatch"])
def test_runs_without_snapshots_give_nothing(tmp_path, method):
    assert not list(panels(read_runs([write_folder(tmp_path / "run", method=method)])))
