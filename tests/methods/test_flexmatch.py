import pytest
import torch
from tests.methods.steps import next_batch, step_result

from aggmatch.methods.fixmatch import Config as FixMatchConfig
from aggmatch.methods.fixmatch import FixMatch
from aggmatch.methods.flexmatch import UNMARKED, Config, FlexMatch


def method(state, **settings) -> FlexMatch:
    return FlexMatch(Config(**settings), state.method.problem)


def test_thresholds_by_hand(toy_state):
    flexmatch = method(toy_state("flexmatch"), threshold=0.9)
    flexmatch.mark[:60] = torch.tensor([0] * 30 + [1] * 20 + [2] * 10)  # of 90 images: 30 unmarked, as many as class 0
    expected = [0.9 * beta / (2 - beta) for beta in (1, 2 / 3, 1 / 3)]
    assert flexmatch.thresholds().tolist() == pytest.approx(expected)


def test_unmarked_images_lower_all_thresholds(toy_state):
    flexmatch = method(toy_state("flexmatch"))
    flexmatch.mark[:9] = torch.arange(9) % 3
    beta = 3 / 81
    assert flexmatch.thresholds().tolist() == pytest.approx([0.95 * beta / (2 - beta)] * 3)


def test_without_marks_every_image_is_used(toy_state):
    state = toy_state("flexmatch")
    result = step_result(state)
    assert result.pseudo.weight.min() == 1


def test_with_even_marks_the_loss_is_that_of_fixmatch(toy_state):
    state = toy_state("flexmatch")
    batch = next_batch(state)
    flexmatch = method(state, threshold=0.4)
    flexmatch.mark.copy_(torch.arange(90) % 3)
    fixmatch = FixMatch(FixMatchConfig(threshold=0.4), state.method.problem)
    ours, theirs = (each.step(batch, state.online, state.average) for each in (flexmatch, fixmatch))
    assert ours.loss.item() == pytest.approx(theirs.loss.item())
    assert ours.pseudo is not None
    assert theirs.pseudo is not None
    assert torch.equal(ours.pseudo.weight, theirs.pseudo.weight)


def test_marks_use_the_fixed_threshold_and_are_only_overwritten(toy_state):
    flexmatch = method(toy_state("flexmatch"), threshold=0.9)
    index = torch.tensor([4, 7, 9])
    flexmatch.update_marks(index, torch.tensor([0.95, 0.5, 0.9]), torch.tensor([1, 1, 2]))
    assert flexmatch.mark[index].tolist() == [1, UNMARKED, 2]
    flexmatch.update_marks(index, torch.tensor([0.5, 0.95, 0.95]), torch.tensor([0, 0, 0]))
    assert flexmatch.mark[index].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("confidence", "expected"),
    [([0.95, 0.5], 1), ([0.5, 0.95], 2), ([0.95, 0.95], 2), ([0.5, 0.5], UNMARKED)],
    ids=["first sure", "second sure", "both sure", "neither sure"],
)
def test_an_image_that_is_in_a_batch_twice_gets_its_last_sure_class(toy_state, confidence, expected):
    flexmatch = method(toy_state("flexmatch"), threshold=0.9)
    flexmatch.update_marks(torch.tensor([4, 4]), torch.tensor(confidence), torch.tensor([1, 2]))
    assert flexmatch.mark[4] == expected
    assert (flexmatch.mark[:4] == UNMARKED).all()


def test_marks_are_those_of_writing_one_prediction_after_the_other(toy_state):
    generator = torch.Generator().manual_seed(0)
    flexmatch = method(toy_state("flexmatch"), threshold=0.5)
    expected = flexmatch.mark.tolist()
    for _ in range(20):
        index, target = (torch.randint(high, (30,), generator=generator) for high in (12, 3))
        confidence = torch.rand(30, generator=generator)
        flexmatch.update_marks(index, confidence, target)
        for image, sure, number in zip(index.tolist(), (confidence >= 0.5).tolist(), target.tolist(), strict=True):
            expected[image] = number if sure else expected[image]
        assert flexmatch.mark.tolist() == expected


def test_the_smallest_and_the_largest_threshold_are_logged(toy_state):
    state = toy_state("flexmatch")
    state.method.mark.copy_(torch.arange(90).clamp(max=20) // 10)
    before = state.method.thresholds()
    parts = step_result(state).parts
    assert (parts["threshold_lowest"], parts["threshold_highest"]) == (before.min(), before.max())
    assert before.min() < before.max()


def test_thresholds_come_from_marks_of_earlier_steps(toy_state):
    state = toy_state("flexmatch", method__threshold=0.0)
    batch = next_batch(state)
    before = state.method.thresholds()
    result = state.method.step(batch, state.online, state.average)
    assert result.parts["threshold"].item() == before.mean().item()
    assert (state.method.mark != UNMARKED).sum() == len(batch.unlabeled_index.unique())
