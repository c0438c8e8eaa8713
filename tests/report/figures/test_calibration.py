"""Confidence of pseudo labels against the share of right ones."""

from pathlib import Path

import pytest
import torch
from tests.folders import write_folder

from aggmatch.errors import AggMatchError
from aggmatch.functional import Aggregate
from aggmatch.report.figures import draw, predictions
from aggmatch.report.figures.predictions import reliabilities, reliability
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.runs.stored import StoredRun, read_runs


def test_reliability_by_hand():
    confidence = torch.tensor([0.1, 0.3, 0.9, 0.7, 1.0])
    right = torch.tensor([True, False, True, False, True])
    found = reliability(confidence, right, bins=2)
    assert found.count.tolist() == [2, 3]
    assert found.confidence == pytest.approx([0.2, 2.6 / 3])
    assert found.accuracy == pytest.approx([0.5, 2 / 3])
    assert found.error == pytest.approx(2 / 5 * 0.3 + 3 / 5 * 0.2)


def test_a_bin_ends_with_its_upper_edge_and_empty_ones_are_left_out():
    found = reliability(torch.tensor([0.0, 0.5, 0.51]), torch.ones(3, dtype=torch.bool), bins=4)
    assert found.count.tolist() == [1, 1, 1]
    assert reliability(torch.tensor([0.25, 0.2]), torch.ones(2, dtype=torch.bool), bins=4).count.tolist() == [2]


def test_calibrated_confidences_have_no_error():
    confidence = torch.tensor([0.75] * 4 + [1.0] * 3)
    right = torch.tensor([True, True, True, False, True, True, True])
    assert reliability(confidence, right).error == pytest.approx(0)


def test_each_confidence_is_compared_with_its_own_label():
    own = torch.tensor([[0.6, 0.4]])
    aggregated = Aggregate(torch.tensor([[0.1, 0.9]]), torch.tensor([[0.25, 0.75]]), torch.tensor([0.57]))
    found = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, aggregated, refines=True)
    p, refined, consensus = reliabilities(found).values()
    assert (p.confidence[0], p.accuracy[0]) == (pytest.approx(0.6), 0)
    assert (refined.confidence[0], refined.accuracy[0]) == (pytest.approx(0.9), 1)
    assert (consensus.confidence[0], consensus.accuracy[0]) == (pytest.approx(0.57), 1)
    alone = PseudoLabeled(1, torch.tensor([0]), torch.tensor([1]), own, None, refines=False)
    assert len(reliabilities(alone)) == 1


def test_each_run_and_kind_of_confidence_has_a_plot(rivals: list[StoredRun]):
    ((_, shown),) = draw(rivals, ["calibration"])
    for method in ("aggmatch", "fixmatch"):
        told = f"{method} (paper recipe) on digits, 20 labels, fold 0, step 30, 1,417 unlabelled training images"
        assert told in shown.caption
    assert [(plot.heading, plot.figure.axes[0].get_title(loc="left")) for plot in shown.plots] == [
        ("aggmatch fold 0", "own prediction, max p"),
        ("aggmatch fold 0", "refined, max p̄"),
        ("aggmatch fold 0", "consensus, c̄"),
        ("fixmatch fold 0", "own prediction, max p"),
    ]
    assert shown.plots[1].name == "aggmatch-fold-0-refined"
    assert len({plot.name for plot in shown.plots}) == 4


def test_the_plots_of_one_run_need_no_heading(fixmatch_run: StoredRun):
    ((_, shown),) = draw([fixmatch_run], ["calibration"])
    assert shown.title == "Calibration of pseudo labels, fixmatch fold 0"
    assert [(plot.name, plot.heading) for plot in shown.plots] == [("own-prediction", "")]


def test_a_corrupt_snapshot_removes_only_the_plots_of_its_run(rivals: list[StoredRun], monkeypatch):
    def corrupt(run: StoredRun, path: Path) -> PseudoLabeled:
        if run.method == "aggmatch":
            raise AggMatchError(f"{path.name} is corrupt.")
        return pseudo_labels_at(run, path)

    monkeypatch.setattr(predictions, "pseudo_labels_at", corrupt)
    shown = draw(rivals, ["calibration"])
    assert next(shown)[1].title == "Calibration of pseudo labels, fixmatch fold 0"
    with pytest.raises(AggMatchError, match=r"^step-00000030.safetensors is corrupt.$"):
        next(shown)


def test_a_run_without_snapshots_has_no_calibration(tmp_path):
    assert not list(draw(read_runs([write_folder(tmp_path / "run")]), ["calibration"]))
