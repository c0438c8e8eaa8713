import pytest
import torch
from scipy.stats import binom
from tests.folders import write_folder

from aggmatch.evaluation import Evaluation
from aggmatch.inference.model import TrainedModel
from aggmatch.report import test_results as module
from aggmatch.report.test_results import Share, accepted, class_results, discrepancy, paired
from aggmatch.runs.stored import read_runs


def certain(predicted: torch.Tensor, labels: torch.Tensor, confidence: float = 1.0) -> Evaluation:
    """An evaluation that predicts the given classes, all with one confidence."""
    probs = torch.full((len(labels), 10), (1 - confidence) / 9)
    probs[torch.arange(len(labels)), predicted] = confidence
    return Evaluation(probs, labels)


@pytest.fixture
def runs(tmp_path):
    return read_runs([write_folder(tmp_path / name, [], {}, method=name) for name in ("fixmatch", "supervised")])


def predict_as(monkeypatch, *answers: Evaluation) -> None:
    """Replace the predictions of models: of the runs in the order in which they are asked for."""
    left = iter(answers)
    monkeypatch.setattr(module, "predict_test_images", lambda run, progress: next(left))


def test_predictions_are_cached_with_the_run_and_report_progress(rival_folders, monkeypatch):
    (run,) = read_runs(rival_folders[:1])
    lines: list[str] = []
    monkeypatch.setattr(module, "CHUNK", 100)
    monkeypatch.setattr(module, "PROGRESS_EVERY", -1)
    found = module.test_predictions(run, lines.append)
    assert lines == [
        "Model of aggmatch fold 0 on 360 test images ...",
        *(f"  {n} of 360" for n in (100, 200, 300, 360)),
    ]
    assert module.test_predictions(run, lines.append) is found
    assert len(lines) == 5
    assert found.accuracy == pytest.approx(run.accuracy)
    assert torch.allclose(found.probs, TrainedModel.load(run.folder.path).evaluate(run.data()).probs, atol=1e-6)


def test_quick_predictions_report_one_line(rival_folders):
    (run,) = read_runs(rival_folders[:1])
    lines: list[str] = []
    module.test_predictions(run, lines.append)
    assert len(lines) == 1


def test_an_accuracy_unlike_that_of_the_summary_is_reported(runs, monkeypatch):
    labels = torch.arange(100) % 10
    predicted = labels.clone()
    predicted[:10] += 1
    predicted %= 10
    predict_as(monkeypatch, certain(predicted, labels))
    monkeypatch.setattr(module, "hardware", lambda device: f"this {device}")
    run = runs[0]
    assert run.summary["accuracy"] == 90
    assert discrepancy(run) == ""
    run.summary["accuracy"] = 89.99
    assert discrepancy(run) == (
        "Evaluated here on this cpu: 90.00 %; the run reported 89.99 % on a CPU, whose arithmetic may differ."
    )


def test_other_test_images_than_those_of_the_run_are_reported_at_any_accuracy(runs, monkeypatch):
    labels = torch.arange(10)
    predict_as(monkeypatch, *[certain(labels, labels)] * 2)
    run = runs[0]
    run.summary["accuracy"] = 100.0
    assert discrepancy(run) == ""
    run.drawn["test_fingerprint"] = "0123456789abcdef"
    assert discrepancy(run) == (
        "The test images here are not those of the run: the model is right on 100.00 % of these; the run reported "
        "100.00 % on its own."
    )
    del run.drawn["test_fingerprint"]
    assert discrepancy(run) == "", "older runs have no fingerprint"


def test_classes_have_their_labels_and_what_they_are_mistaken_for(runs, monkeypatch):
    labels = torch.tensor([0, 0, 0, 0, 1, 2])
    predicted = torch.tensor([0, 7, 7, 5, 1, 2])
    predict_as(monkeypatch, certain(predicted, labels))
    zero, one, *_, nine = class_results(runs[0])
    assert (zero.name, zero.labels, zero.share, zero.rival, zero.mistaken) == ("0", 4, Share(1, 4), "7", 2)
    assert (one.share, one.rival, one.mistaken) == (Share(1, 1), "", 0)
    assert nine.share is None


def test_accuracy_among_accepted_predictions_matches_a_count_by_hand():
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
    predict_as(monkeypatch, certain(first, labels), certain(second, labels))
    found = paired(*runs)
    assert (found.first, found.second) == ("fixmatch fold 0", "supervised fold 0")
    assert (found.only_first, found.only_second) == (8, 2)
    assert found.chance == pytest.approx(2 * binom.cdf(2, 10, 0.5))


def test_models_that_agree_have_a_chance_of_one(runs, monkeypatch):
    labels = torch.zeros(5, dtype=torch.long)
    predict_as(monkeypatch, *[certain(labels, labels)] * 2)
    assert paired(*runs).chance == 1
