import pytest
import torch

from aggmatch.methods.alignment import Alignment, FadingAlignment, align, build_alignment
from aggmatch.methods.base import Problem


def problem(**known) -> Problem:
    return Problem(classes=3, features=2, labels=6, images=20, **known)


def random_probs(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)).softmax(-1)


def test_alignment_by_hand():
    aligned = align(torch.tensor([[0.8, 0.2]]), torch.tensor([0.8, 0.2]), torch.tensor([0.5, 0.5]))
    assert aligned[0].tolist() == pytest.approx([0.5, 0.5], abs=1e-5)


def test_predictions_whose_mean_is_the_goal_do_not_change():
    probs = random_probs(5)
    torch.testing.assert_close(align(probs, torch.full((3,), 1 / 3), torch.full((3,), 1 / 3)), probs)


def test_the_window_takes_the_mean_of_the_last_batches_with_this_one():
    module = Alignment(problem(), "uniform", window=2)
    batches = [random_probs(4, seed) for seed in range(3)]
    for batch in batches:
        aligned = module(batch)
    mean = torch.stack([batch.mean(0) for batch in batches[1:]]).mean(0)
    torch.testing.assert_close(aligned, align(batches[-1], mean, torch.full((3,), 1 / 3)))


def test_the_first_batch_counts_alone_in_a_window_that_is_not_full():
    batch = random_probs(4)
    torch.testing.assert_close(
        Alignment(problem(), "uniform", 32)(batch), align(batch, batch.mean(0), torch.full((3,), 1 / 3))
    )


def test_repeated_alignment_moves_the_mean_of_predictions_to_the_goal():
    goal = (0.5, 0.3, 0.2)
    module = Alignment(problem(class_shares=goal), "labels", window=32)
    biased = (random_probs(400) * torch.tensor([3.0, 1.0, 0.2])).softmax(-1)
    before = (biased.mean(0) - torch.tensor(goal)).abs().sum()
    assert (module(biased).mean(0) - torch.tensor(goal)).abs().sum() < before / 3


def test_a_class_that_is_never_predicted_gives_finite_values():
    assert Alignment(problem(), "uniform", 4)(torch.tensor([[1.0, 0.0, 0.0]])).isfinite().all()


def test_the_target_none_leaves_predictions_unchanged():
    probs = random_probs(4)
    assert build_alignment(problem(), "none", 32)(probs) is probs


def test_a_fading_alignment_divides_by_the_running_mean_and_then_leaves_predictions_unchanged():
    module, batches = FadingAlignment(3, decay=0.5, until=2), [random_probs(4, seed) for seed in range(4)]
    mean = torch.zeros(3)
    for number, batch in enumerate(batches):
        keep = min(number / (number + 1), 0.5)
        mean = keep * mean + (1 - keep) * batch.mean(0)
        power = {1: 1.0, 2: 1.0, 3: 0.5, 4: 0.0}[number + 1]
        scaled = batch / (mean + 1e-6) ** power
        torch.testing.assert_close(module(batch), scaled / scaled.sum(1, keepdim=True))
    torch.testing.assert_close(module(batches[0]), batches[0])


def test_a_fading_alignment_without_an_end_stays():
    module, batch = FadingAlignment(3, decay=0.9, until=0), random_probs(6)
    for _ in range(50):
        aligned = module(batch)
    assert (aligned.mean(0) - 1 / 3).abs().max() < (batch.mean(0) - 1 / 3).abs().max()


def test_a_fading_alignment_can_have_other_class_shares_as_its_target():
    batch, shares = random_probs(4), (0.5, 0.3, 0.2)
    aligned = FadingAlignment(3, decay=0.9, until=0, shares=shares)(batch)
    torch.testing.assert_close(aligned, align(batch, batch.mean(0), torch.tensor(shares)))


def test_equal_class_shares_are_the_default_target_of_a_fading_alignment():
    batch = random_probs(4)
    default, equal = (FadingAlignment(3, decay=0.9, until=0, shares=shares)(batch) for shares in ((), (1 / 3,) * 3))
    torch.testing.assert_close(default, equal)


@pytest.mark.parametrize("target", ["uniform", "labels"])
def test_aggmatch_aligns_to_the_shares_that_its_setting_names(toy_state, target):
    method = toy_state(method__alignment=True, method__alignment_target=target).method
    goals = {name: module.goal.tolist() for name, module in method.align.items()}
    shares = method.problem.class_shares if target == "labels" else ()
    assert goals == dict.fromkeys(("own", "queue", "refined"), pytest.approx([share + 1e-6 for share in shares]))
