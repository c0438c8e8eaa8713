import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta

from aggmatch.functional import beta_shares, interleave, mixup


def test_mixup_of_a_hand_computed_case():
    values = torch.tensor([[0.0, 10.0], [100.0, 20.0], [200.0, 40.0]])
    mixed = mixup(values, torch.tensor([1, 2, 1]), torch.tensor([0.75, 0.5, 1.0]))
    torch.testing.assert_close(mixed, torch.tensor([[25.0, 12.5], [150.0, 30.0], [200.0, 40.0]]))


def test_mixup_of_images_gives_every_pixel_its_images_share():
    images = torch.rand(4, 3, 5, 6, generator=torch.Generator().manual_seed(0)) * 255
    partner, share = [2, 0, 3, 1], [0.5, 0.6, 0.9, 1.0]
    mixed = mixup(images, torch.tensor(partner), torch.tensor(share))
    assert mixed.shape == images.shape
    for i in range(4):
        torch.testing.assert_close(mixed[i], share[i] * images[i] + (1 - share[i]) * images[partner[i]])


def test_mixup_of_distributions_gives_distributions():
    generator = torch.Generator().manual_seed(0)
    probs = torch.softmax(3 * torch.randn(50, 7, generator=generator), -1)
    mixed = mixup(probs, torch.randperm(50, generator=generator), beta_shares(50, 0.75, generator))
    assert (mixed >= 0).all()
    torch.testing.assert_close(mixed.sum(-1), torch.ones(50))


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.75, 1.0, 4.0, 100.0])
def test_shares_are_distributed_as_the_larger_part_of_a_beta(alpha):
    count = 20_000
    share = beta_shares(count, alpha, torch.Generator().manual_seed(0))
    assert share.shape == (count,)
    for point in (0.52, 0.55, 0.6, 0.7, 0.8, 0.9, 0.99, 0.999):
        # max(b, 1 − b) ≤ s exactly if 1 − s ≤ b ≤ s
        expected = beta.cdf(point, alpha, alpha) - beta.cdf(1 - point, alpha, alpha)
        deviation = (expected * (1 - expected) / count) ** 0.5
        assert (share <= point).double().mean().item() == pytest.approx(expected, abs=4 * deviation + 1e-4)


@pytest.mark.parametrize("alpha", [1e-6, 1e-3, 0.75, 1e3, 1e6])
def test_shares_lie_between_one_half_and_one_for_every_alpha(alpha):
    share = beta_shares(10_000, alpha, torch.Generator().manual_seed(0))
    assert ((share >= 0.5) & (share <= 1)).all()
    if alpha < 0.1:
        assert (share > 0.999).double().mean() > 0.98
    if alpha > 100:
        assert share.max() < 0.6


def test_shares_depend_on_the_generator_alone():
    generator = torch.Generator().manual_seed(3)
    first, second = beta_shares(5, 0.75, generator), beta_shares(5, 0.75, generator)
    torch.manual_seed(0)
    assert torch.equal(beta_shares(5, 0.75, torch.Generator().manual_seed(3)), first)
    assert not torch.equal(first, second)


def test_interleaving_of_a_hand_computed_case():
    batches = [torch.tensor([10, 11, 12, 13]), torch.tensor([20, 21, 22, 23]), torch.tensor([30, 31, 32, 33])]
    assert [batch.tolist() for batch in interleave(batches)] == [[10, 21, 32, 13], [30, 11, 22, 33], [20, 31, 12, 23]]


@given(count=st.integers(1, 9), size=st.integers(1, 20))
def test_interleaving_is_its_own_inverse_and_spreads_every_batch_evenly(count, size):
    origin, position = torch.meshgrid(torch.arange(count), torch.arange(size), indexing="ij")
    batches = list(torch.stack([origin, position], -1))
    mixed = interleave(batches)
    for batch in mixed:
        assert batch[:, 1].tolist() == list(range(size))
        parts = torch.bincount(batch[:, 0], minlength=count)
        assert parts.max() - parts.min() <= 1  # with at least as many samples as batches, none is left out
    assert torch.equal(torch.cat(mixed).unique(dim=0), torch.cat(batches))
    assert all(torch.equal(a, b) for a, b in zip(interleave(mixed), batches, strict=True))


def test_gradients_return_to_the_samples_they_belong_to():
    batches = [torch.zeros(5, 2, requires_grad=True) for _ in range(3)]
    weights = torch.arange(30.0).view(3, 5, 2)
    restored = interleave(interleave(batches))
    sum((weight * batch).sum() for weight, batch in zip(weights, restored, strict=True)).backward()
    for weight, batch in zip(weights, batches, strict=True):
        assert batch.grad is not None
        assert torch.equal(batch.grad, weight)
