"""Confident mistakes of another method that aggregation avoids."""

import shutil
from pathlib import Path

import pytest
import torch
from tests.folders import line, write_folder

from aggmatch.errors import AggMatchError
from aggmatch.report.figures import draw, labels
from aggmatch.report.figures.labels import corrected_mistakes, same_labels, take_turns
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.runs.stored import StoredRun, read_runs

PSEUDO = [line(1, pseudo_coverage=0.5)]


def sure(*rows: tuple[int, float]) -> torch.Tensor:
    """Distributions over three classes with a favourite and its probability."""
    probs = torch.stack([torch.full((3,), (1 - p) / 2) for _, p in rows])
    probs[range(len(rows)), [favorite for favorite, _ in rows]] = torch.tensor([p for _, p in rows])
    return probs


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
    assert take_turns(torch.tensor([2, 0, 4, 1, 5, 3]), kinds).tolist() == [2, 4, 5, 0, 3, 1]
    assert take_turns(torch.arange(0), kinds).tolist() == []


def test_only_runs_on_the_same_labels_are_compared(rivals: list[StoredRun], tmp_path):
    assert same_labels(*rivals)
    other = write_folder(tmp_path / "run", PSEUDO, data__labels=20, data__fold=1)
    (other / "snapshots").mkdir()
    (other / "snapshots/step-00000001.safetensors").touch()
    (stranger,) = read_runs([other])
    assert not same_labels(rivals[0], stranger)
    with pytest.raises(AggMatchError, match="aggmatch fold 0"):
        next(draw([rivals[0], stranger], ["mistakes"]))
    (bare,) = read_runs([write_folder(tmp_path / "bare", PSEUDO, data__labels=20)])
    assert not list(draw([rivals[0], bare], ["mistakes"])), "without snapshots there is nothing to compare"


def test_a_method_without_pseudo_labels_is_no_rival(rival_folders: list[Path], tmp_path):
    shutil.copytree(rival_folders[1], tmp_path / "run")
    (tmp_path / "run/metrics.jsonl").unlink()
    assert not list(draw(read_runs([rival_folders[0], tmp_path / "run"]), ["mistakes"]))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_mistakes_are_compared_with_the_fold_that_has_the_same_labels(rival_folders: list[Path], tmp_path, order):
    other = write_folder(tmp_path / "other", method="aggmatch", data__labels=20, data__fold=1)
    shutil.copy(rival_folders[0] / "config.json", other)
    shutil.copytree(rival_folders[0] / "snapshots", other / "snapshots")
    folders = [rival_folders[0], rival_folders[1], other]
    shown = draw(read_runs([folders[number] for number in order]), ["mistakes"])
    assert [panel.name for _, panel in shown] == ["mistakes-aggmatch-fold-0"]


def test_mistakes_are_shown_with_the_truth_and_both_labels(rivals: list[StoredRun]):
    ((_, panel),) = draw(rivals, ["mistakes"])
    theirs, ours = (pseudo_labels_at(run, run.snapshots[-1]) for run in reversed(rivals))
    wrong, corrected = corrected_mistakes(theirs, ours, 0.15)
    assert f"for {len(wrong)}; aggmatch has {len(corrected)} of these right" in panel.caption
    in_turn = take_turns(corrected, 10 * theirs.truth + theirs.own.argmax(1))[:8]
    words = [[text.get_text() for text in axes.texts] for plot in panel.plots for axes in plot.figure.axes[1::2]]
    assert [lines[0] for lines in words] == [f"true class {truth}" for truth in theirs.truth[in_turn]]
    first = int(corrected[0])
    truth, mistaken = int(theirs.truth[first]), int(theirs.own[first].argmax())
    assert words[0][1:] == [
        f"✗ fixmatch: {mistaken} ({theirs.own[first].max():.2f})",
        f"✓ aggmatch: {truth} ({ours.confidence[first]:.2f})",
    ]
    assert truth != mistaken


def test_without_mistakes_to_correct_the_reason_is_given(rivals: list[StoredRun], monkeypatch):
    nothing = torch.arange(0)
    monkeypatch.setattr(labels, "corrected_mistakes", lambda *_: (nothing, nothing))
    with pytest.raises(AggMatchError, match="of fixmatch fold 0 that aggmatch fold 0 has right"):
        list(draw(rivals, ["mistakes"]))
