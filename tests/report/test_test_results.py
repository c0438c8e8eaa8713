import pytest
import torch
from scipy.stats import binom
from tests.folders import write_folder

from aggmatch.evaluation import Evaluation
from aggmatch.report import test_results as trust
from aggmatch.report.test_results import Share, accepted, class_results, discrepancy, paired, tried
from aggmatch.runs.stored import read_runs


def certain(predicted: torch.Tensor, labels: torch.Tensor, confidence: float = 1.0) -> Evaluation:
    """An evaluation that predicts the given classes, all with one confidence."""
    probs = torch.full((len(labels), 10), (1 - confidence) / 9)
    probs[torch.arange(len(labels)), predicted] = confidence
    return Evaluation(probs, labels)


@pytest.fixture
def runs(tmp_path):
    return read_runs([write_folder(tmp_path / name, [], {}, method=name) for name in ("fixmatch", "supervised")])


def test_a_model_is_tried_once_and_its_progress_is_told(rival_folders, monkeypatch):
    (run,) = read_runs(rival_folders[:1])
    lines: list[str] = []
    monkeypatch.setattr(trust, "PART", 100)
    monkeypatch.setattr(trust, "PATIENCE", -1)
    found = tried(run, lines.append)
    assert lines == [
        "Model of aggmatch fold 0 on 360 test images ...",
        *(f"  {n} of 360" for n in (100, 200, 300, 360)),
    ]
    assert tried(run, lines.append) is found
    assert len(lines) == 5
    assert run.summary is not None
    assert found.accuracy == pytest.approx(run.summary["accuracy"])
    assert torch.allclose(found.probs, run.model().evaluate(run.data()).probs, atol=1e-6)


def test_what_does_not_take_long_is_told_of_in_one_line(rival_folders):
    (run,) = read_runs(rival_folders[:1])
    lines: list[str] = []
    tried(run, lines.append)
    assert len(lines) == 1


def test_an_accuracy_that_is_not_that_of_the_summary_is_told(runs, monkeypatch):
    labels = torch.arange(100) % 10
    predicted = labels.clone()
    predicted[:10] += 1
    predicted %= 10
    monkeypatch.setattr(trust, "tried", lambda run: certain(predicted, labels))
    monkeypatch.setattr(trust, "hardware", lambda device: f"this {device}")
    run = runs[0]
    assert run.summary["accuracy"] == 90
    assert discrepancy(run) == ""
    run.summary["accuracy"] = 89.99
    assert discrepancy(run) == (
        "Tried here on this cpu: 90.00 %; the run itself ended with 89.99 % on a CPU, whose arithmetic may differ."
    )


def test_other_test_images_than_the_runs_are_told_whatever_the_accuracy(runs, monkeypatch):
    labels = torch.arange(10)
    monkeypatch.setattr(trust, "tried", lambda run: certain(labels, labels))
    run = runs[0]
    run.summary["accuracy"] = 100.0
    assert discrepancy(run) == ""
    run.drawn["test_fingerprint"] = "0123456789abcdef"
    assert discrepancy(run) == (
        "The test images here are not those of the run: 100.00 % of these are right; the run itself ended with "
        "100.00 % of its own."
    )
    del run.drawn["test_fingerprint"]
    assert discrepancy(run) == "", "of older runs it is not known"


def test_classes_are_told_with_their_labels_and_what_they_are_taken_for(runs, monkeypatch):
    labels = torch.tensor([0, 0, 0, 0, 1, 2])
    predicted = torch.tensor([0, 7, 7, 5, 1, 2])
    monkeypatch.setattr(trust, "tried", lambda run: certain(predicted, labels))
    zero, one, *_, nine = class_results(runs[0])
    assert (zero.name, zero.labels, zero.share, zero.rival, zero.mistaken) == ("0", 4, Share(1, 4), "7", 2)
    assert (one.share, one.rival, one.mistaken) == (Share(1, 1), "", 0)
    assert nine.share is None


def test_accuracy_among_accepted_predictions_is_counted_by_hand():
    labels = torch.tensor([0, 1, 2, 3])
    probs = torch.zeros(4, 10)
    probs[torch.arange(4), torch.tensor([0, 1, 5, 5])] = torch.tensor([0.99, 0.9, 0.9, 0.4])
    rows = accepted(Evaluation(probs, labels), (0.0, 0.9, 0.95, 0.999))
    assert [(row.threshold, row.kept, row.share) for row in rows] == [
        (0.0, Share(4, 4), Share(2, 4)),
        (0.9, Share(3, 4), Share(2, 3)),
        (0.95, Share(1, 4), Share(1, 1)),
    ]


def test_two_models_are_compared_image_by_image(runs, monkeypatch):
    labels = torch.zeros(20, dtype=torch.long)
    first, second = labels.clone(), labels.clone()
    first[:2] = 1  # wrong where only the second is right
    second[2:10] = 1
    first[15:], second[15:] = 1, 1
    answers = {"fixmatch": certain(first, labels), "supervised": certain(second, labels)}
    monkeypatch.setattr(trust, "tried", lambda run: answers[run.method])
    found = paired(*runs)
    assert (found.first, found.second) == ("fixmatch fold 0", "supervised fold 0")
    assert (found.only_first, found.only_second) == (8, 2)
    assert found.chance == pytest.approx(2 * binom.cdf(2, 10, 0.5))


def test_models_that_agree_differ_by_chance_alone(runs, monkeypatch):
    labels = torch.zeros(5, dtype=torch.long)
    monkeypatch.setattr(trust, "tried", lambda run: certain(labels, labels))
    assert paired(*runs).chance == 1
