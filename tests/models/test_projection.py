import pytest
import torch

from aggmatch.models.heads import Projection


def features(count: int = 12, width: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def head() -> Projection:
    torch.manual_seed(0)
    return Projection(6, 4)


@pytest.mark.parametrize(("hidden", "slope"), [(None, 0.0), (3, 0.1)])
def test_the_projection_is_two_normalised_and_rectified_layers_and_a_linear_one(hidden, slope):
    torch.manual_seed(0)
    head, x = Projection(6, 4, hidden, slope), features().double()
    assert head.layers[0].out_features == (hidden or 6)
    first, _, _, second, _, _, last = (list(module.parameters()) for module in head.layers)
    for (weight,) in (first, second):
        x = x @ weight.detach().double().T
        x = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()  # a fresh BatchNorm scales by 1 and shifts by 0
        x = torch.where(x > 0, x, slope * x)
    last_weight, bias = (parameter.detach().double() for parameter in last)
    torch.testing.assert_close(head(features()).double(), x @ last_weight.T + bias, atol=1e-5, rtol=1e-4)


def test_in_evaluation_mode_the_projection_of_a_feature_does_not_depend_on_others(head):
    for seed in range(3):
        head(features(seed=seed))
    head.eval()
    together = head(features(seed=5))
    alone = torch.cat([head(row[None]) for row in features(seed=5)])
    torch.testing.assert_close(together, alone)


def test_every_layer_of_the_projection_learns(head):
    head(features()).square().sum().backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in head.parameters())


def test_a_single_row_counts_like_two_equal_ones_in_training(head):
    row = features(1).requires_grad_()
    twice = Projection(6, 4)
    twice.load_state_dict(head.state_dict())
    alone = head(row)
    assert torch.equal(alone, twice(row.repeat(2, 1))[:1])
    assert all(torch.equal(*pair) for pair in zip(head.buffers(), twice.buffers(), strict=True))
    (gradient,) = torch.autograd.grad(alone.sum(), row)
    assert gradient.isfinite().all()
