"""What to label next, and which labels are probably wrong: on features whose groups are known."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aggmatch.features import active
from aggmatch.features.active import Doubt, find_doubts, suggest


def make_groups(sizes: list[int], spread: float = 0.03, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Features around one axis for each group, and the groups they belong to."""
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    noise = torch.randn(len(group), 16, generator=torch.Generator().manual_seed(seed))
    return F.one_hot(group, 16).float() + spread * noise, group


def test_the_first_images_are_of_different_groups_and_the_largest_group_comes_first():
    feature_ND, group = make_groups([20, 60, 40])
    assert group[suggest(feature_ND, [], 3)].tolist() == [1, 2, 0]


def test_the_first_image_is_typical_of_its_group():
    feature_ND, group = make_groups([60, 20, 20])
    unit_ND = active.directions(feature_ND)[group == 0]
    similarity = (unit_ND @ unit_ND.T).mean(1)
    assert similarity[suggest(feature_ND, [], 1)[0]] > similarity.quantile(0.9)


def test_a_group_with_a_label_waits_until_the_others_have_one():
    feature_ND, group = make_groups([20, 60, 40])
    assert group[suggest(feature_ND, [25], 2)].tolist() == [2, 0]


def test_no_image_is_suggested_twice_or_has_a_label():
    feature_ND, _ = make_groups([5, 5])
    assert sorted(suggest(feature_ND, [0, 7], 100)) == [1, 2, 3, 4, 5, 6, 8, 9]


def test_duplicates_come_last():
    feature_ND, _ = make_groups([5, 5])
    copies = feature_ND.repeat(2, 1)
    chosen = suggest(copies, [0], 10)
    assert len({image % 10 for image in [0, *chosen[:9]]}) == 10


def test_predictions_move_the_choice_to_uncertain_images():
    feature_ND, group = make_groups([60, 20])
    certain, torn = torch.tensor([0.98, 0.01, 0.01]), torch.tensor([0.5, 0.5, 0.0])
    probs_NY = torch.where((group == 1)[:, None], torn, certain)
    assert group[suggest(feature_ND, [], 1)].tolist() == [0]
    assert group[suggest(feature_ND, [], 1, probs_NY=probs_NY)].tolist() == [1]


def test_the_same_arguments_give_the_same_choice_and_inputs_stay_unchanged():
    feature_ND, _ = make_groups([10, 10])
    before = feature_ND.clone()
    assert suggest(feature_ND, [3], 5) == suggest(feature_ND, [3], 5)
    assert torch.equal(feature_ND, before)


def test_of_many_images_a_sample_is_enough_to_find_all_groups(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(active, "SAMPLE", 60)
    feature_ND, group = make_groups([100, 100, 100])
    assert sorted(group[suggest(feature_ND, [], 3)].tolist()) == [0, 1, 2]
    assert suggest(feature_ND, [], 3, seed=1) != suggest(feature_ND, [], 3, seed=2)


def test_a_sample_holds_only_images_without_a_label(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(active, "SAMPLE", 5)
    feature_ND, _ = make_groups([100, 100])
    assert sorted(suggest(feature_ND, range(3, 200), 3)) == [0, 1, 2]


def test_half_precision_features_of_a_store_are_welcome():
    feature_ND, group = make_groups([20, 60])
    assert group[suggest(feature_ND.half(), [], 2)].tolist() == [1, 0]


def test_without_images_nothing_is_suggested():
    assert suggest(torch.zeros(0, 4), [], 5) == []


def flipped(labels: Tensor, rows: list[int], classes: int) -> Tensor:
    """The labels with those at `rows` replaced by the next class."""
    changed = labels.clone()
    changed[rows] = (changed[rows] + 1) % classes
    return changed


@pytest.mark.parametrize("predicted", [False, True])
def test_flipped_labels_are_found_with_their_true_class(predicted: bool):
    feature_ND, group = make_groups([40, 40, 40])
    labeled = torch.arange(0, 120, 4)
    wrong = [3, 14, 25]
    labels = flipped(group[labeled], wrong, 3)
    probs_NY = F.one_hot(group, 3).float() if predicted else None
    doubts = find_doubts(feature_ND, labeled, labels, probs_NY)
    assert {doubt.index for doubt in doubts} == set(labeled[wrong].tolist())
    assert all(doubt.suggested == group[doubt.index] and doubt.given != doubt.suggested for doubt in doubts)
    assert [doubt.score for doubt in doubts] == sorted((doubt.score for doubt in doubts), reverse=True)


def test_a_network_that_has_learned_a_wrong_label_does_not_hide_it():
    feature_ND, group = make_groups([40, 40])
    labeled = torch.arange(0, 80, 4)
    labels = flipped(group[labeled], [5], 2)
    probs_NY = F.one_hot(group, 2).float()
    probs_NY[labeled] = F.one_hot(labels, 2).float()
    assert [doubt.index for doubt in find_doubts(feature_ND, labeled, labels, probs_NY)] == [20]


def test_what_the_network_says_of_the_image_itself_orders_the_list():
    feature_ND, group = make_groups([40, 40])
    labeled = torch.arange(0, 80, 4)
    labels = flipped(group[labeled], [5, 6], 2)
    probs_NY = F.one_hot(group, 2).float()
    probs_NY[20] = torch.tensor([0.0, 1.0])  # learned by heart
    assert [doubt.index for doubt in find_doubts(feature_ND, labeled, labels, probs_NY)] == [24, 20]


def test_the_only_label_of_a_class_is_judged_by_predictions_alone():
    feature_ND, group = make_groups([40, 40])
    labeled, labels = torch.tensor([0, 40]), torch.tensor([0, 0])
    assert find_doubts(feature_ND, torch.tensor([0, 40]), torch.tensor([0, 1])) == []
    found = find_doubts(feature_ND, labeled, torch.tensor([1, 0]), F.one_hot(group, 2).float())
    assert {(doubt.index, doubt.suggested) for doubt in found} == {(0, 0), (40, 1)}
    assert find_doubts(feature_ND, labeled[:1], labels[:1], F.one_hot(group, 2).float()) == []


def test_images_that_all_have_labels_ask_each_other():
    feature_ND, group = make_groups([10, 10])
    labels = flipped(group, [4], 2)
    found = find_doubts(feature_ND, torch.arange(20), labels, F.one_hot(group, 2).float())
    assert [doubt.index for doubt in found] == [4]


def test_without_labels_there_are_no_doubts():
    empty = torch.zeros(0, dtype=torch.int64)
    assert find_doubts(torch.zeros(3, 4), empty, empty) == []


def test_each_label_is_predicted_as_if_it_was_never_seen():
    feature_ND, group = make_groups([6, 6], spread=0.5)
    unit_ND = active.directions(feature_ND)
    together = active.predict_left_out(unit_ND, group, 2)
    for row in range(12):  # a slow oracle: train without the row
        kept = torch.arange(12) != row
        values, target = unit_ND[kept].double(), F.one_hot(group[kept], 2).double() - 0.5
        weights = torch.linalg.solve(values.T @ values + active.RIDGE * torch.eye(16).double(), values.T @ target)
        scores = (unit_ND[row].double() @ weights + 0.5).clamp(min=0)
        torch.testing.assert_close(together[row], (scores / scores.sum()).float())


def test_a_doubt_says_which_image_and_both_classes():
    assert Doubt(index=17, given=3, suggested=5, score=0.8).suggested == 5
