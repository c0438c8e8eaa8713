"""The linear classifier that learns from its own predictions."""

import pytest
import torch
from torch import Tensor

from aggmatch.features.self_training import PENALTY, LinearClassifier, drawn, fit, self_trained, surest


def clusters(count: int, classes: int = 3, width: int = 20, distance: float = 6) -> tuple[Tensor, Tensor]:
    """Features (classes·count, width) around a centre for each class, stretched in one direction; and the classes."""
    generator = torch.Generator().manual_seed(0)
    centre = distance * torch.eye(classes, width)
    noise = torch.randn(classes, count, width, generator=generator)
    noise[..., -1] *= 12
    return (centre[:, None] + noise).flatten(0, 1), torch.arange(classes).repeat_interleave(count)


def right(classifier: LinearClassifier, features: Tensor, classes: Tensor) -> float:
    return float((classifier.logits(features).argmax(1) == classes).float().mean())


def test_it_gains_from_images_without_a_label():
    features, classes = clusters(200)
    labeled = torch.tensor([0, 1, 200, 201, 400, 401])
    alone = self_trained(features[labeled], torch.arange(6), classes[labeled], 3)
    found = self_trained(features, labeled, classes[labeled], 3)
    assert right(alone, features, classes) < 0.93
    assert right(found, features, classes) > 0.98


def test_features_of_any_scale_give_the_same_classifier():
    features, classes = clusters(50)
    labeled = torch.tensor([0, 50, 100])
    expected = self_trained(features, labeled, classes[labeled], 3).logits(features)
    scale, shift = torch.logspace(-1, 2, 20), torch.linspace(-50, 50, 20)
    moved = features * scale + shift
    torch.testing.assert_close(
        self_trained(moved, labeled, classes[labeled], 3).logits(moved), expected, atol=0.02, rtol=0.02
    )


def test_predictions_follow_the_shares_of_the_labels():
    features, classes = clusters(250)
    kept = torch.cat([torch.arange(50), torch.arange(250, 500)])  # five times as many images of class 1 as of class 0
    features, classes = features[kept], classes[kept]
    labeled = torch.tensor([0, 60, 61, 62, 63, 64])
    predicted = self_trained(features, labeled, classes[labeled], 2).logits(features).argmax(1)
    assert predicted.float().mean() == pytest.approx(5 / 6, abs=0.03)
    assert (predicted == classes).float().mean() > 0.95


def test_a_class_without_a_label_and_a_constant_feature_do_no_harm():
    features, classes = clusters(50)
    features[:, 5] = 1.0
    labeled = torch.tensor([0, 50])
    found = self_trained(features, labeled, classes[labeled], 3)
    assert all(values.isfinite().all() for values in found)
    assert not (found.logits(features).argmax(1) == 2).any()


def test_it_learns_from_the_predictions_of_a_better_classifier():
    features, classes = clusters(100, distance=3)
    labeled = torch.tensor([0, 100, 200])
    before = LinearClassifier(torch.eye(3, 20), torch.zeros(3))
    found = self_trained(features, labeled, classes[labeled], 3, before)
    alone = self_trained(features, labeled, classes[labeled], 3)
    assert right(before, features, classes) > 0.95
    assert right(found, features, classes) > 0.93 > right(alone, features, classes)


def test_the_surest_images_of_a_class_are_among_those_predicted_as_it():
    probs = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.7, 0.3], [0.2, 0.8]])
    assert surest(probs, [2, 2]).tolist() == [0, 2, 3]
    assert surest(probs, [0, 0]).tolist() == []


def test_a_fit_equals_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, classes = clusters(30)
    weight = torch.linspace(0.5, 3, len(classes))
    found = fit(features, classes, weight, 3).logits(features).softmax(1)
    learner = linear_model.LogisticRegression(C=1 / PENALTY, max_iter=5000, tol=1e-8)
    learner.fit(features.double().numpy(), classes.numpy(), sample_weight=weight.double().numpy())
    expected = torch.from_numpy(learner.predict_proba(features.double().numpy())).float()
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=0)


def test_of_many_images_a_sample_is_drawn(monkeypatch: pytest.MonkeyPatch):
    positions, labeled = torch.arange(5, 105), torch.tensor([7, 9])
    assert drawn(positions, labeled).tolist() == [5, 6, 8, *range(10, 105)]
    monkeypatch.setattr("aggmatch.features.self_training.MOST", 20)
    sample = drawn(positions, labeled)
    assert torch.equal(sample, drawn(positions, labeled))
    assert len(sample.unique()) == 20
    assert set(sample.tolist()) <= set(range(5, 105)) - {7, 9}
    features, classes = clusters(100)
    labeled = torch.tensor([0, 1, 100, 101, 200, 201])
    assert right(self_trained(features, labeled, classes[labeled], 3), features, classes) > 0.8
