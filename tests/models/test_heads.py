import math

import pytest
import torch

from aggmatch.models.heads import Embedding, PrototypeAttention


def linear(layer, vector):
    """A dense layer on a list of numbers, in double precision."""
    return [
        math.fsum(w * v for w, v in zip(row, vector, strict=True)) + b
        for row, b in zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
    ]


def refined_by_hand(head, feature, prototypes, kept=1.0):
    """The refined feature of one image, number by number; `kept` multiplies every attention weight."""
    pieces = []
    for number, merge in enumerate(head.merge):
        part = slice(number * head.width, (number + 1) * head.width)
        query = linear(head.embed, feature)[part]
        keys = [linear(head.embed, prototype)[part] for prototype in prototypes]
        scores = [math.exp(math.fsum(q * k for q, k in zip(query, key, strict=True)) / head.width**0.5) for key in keys]
        weights = [kept * score / math.fsum(scores) for score in scores]
        attended = [math.fsum(w * key[e] for w, key in zip(weights, keys, strict=True)) for e in range(head.width)]
        pieces += [max(0.0, value) for value in linear(merge, attended + query)]
    return [max(0.0, f + o) for f, o in zip(feature, linear(head.out, pieces), strict=True)]


def problem(features=6, heads=2, dropout=0.0, images=5, prototypes=7):
    torch.manual_seed(0)
    head = PrototypeAttention(features, heads, dropout)
    filled = torch.arange(prototypes) % 3 != 1
    return head, 2 * torch.randn(images, features), 2 * torch.randn(prototypes, features), filled


@pytest.mark.parametrize(("features", "heads"), [(6, 2), (8, 4), (7, 2), (2, 3)])
def test_the_refined_feature_equals_the_definition(features, heads):
    head, feature, prototype, filled = problem(features, heads)
    expected = [refined_by_hand(head, row, prototype[filled].tolist()) for row in feature.tolist()]
    refined = head(feature, prototype, filled)
    assert (refined == 0).any()
    assert (refined > 0).any()
    torch.testing.assert_close(refined, torch.tensor(expected), atol=1e-5, rtol=1e-4)


def test_prototypes_that_are_not_filled_do_not_matter():
    head, feature, prototype, filled = problem()
    changed = torch.where(filled[:, None], prototype, 100.0)
    assert torch.equal(head(feature, prototype, filled), head(feature, changed, filled))
    assert not torch.equal(head(feature, prototype, filled), head(feature, prototype, torch.ones_like(filled)))


def test_without_prototypes_values_and_gradients_are_finite():
    head, feature, prototype, filled = problem()
    refined = head(feature, torch.zeros_like(prototype), torch.zeros_like(filled))
    refined.sum().backward()
    assert torch.isfinite(refined).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in head.parameters())


def test_attention_weights_drop_out_with_a_generator():
    head, feature, _, _ = problem(heads=1, dropout=0.25, images=2000)
    feature = feature[:1].expand(2000, -1)
    prototype, filled = torch.randn(1, 6), torch.ones(1, dtype=torch.bool)
    refined = head(feature, prototype, filled, torch.Generator().manual_seed(0))
    # With one prototype its weight is 1: dropped it is 0, otherwise 1/0.75.
    dropped, kept = (
        torch.tensor(refined_by_hand(head, feature[0].tolist(), prototype.tolist(), factor)) for factor in (0.0, 4 / 3)
    )
    is_dropped, is_kept = (((refined - rows).abs() < 1e-5).all(1) for rows in (dropped, kept))
    assert (is_dropped ^ is_kept).all()
    assert is_dropped.float().mean().item() == pytest.approx(0.25, abs=0.04)


def test_nothing_drops_out_without_a_generator():
    head, feature, prototype, filled = problem(dropout=0.5)
    whole = head(feature, prototype, filled)
    assert torch.equal(head(feature, prototype, filled), whole)
    first, again, other = (head(feature, prototype, filled, torch.Generator().manual_seed(n)) for n in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, whole)


def test_only_kernels_have_more_than_one_dimension():
    # Weight decay acts on parameters with more than one dimension.
    head = problem()[0]
    assert all((parameter.ndim > 1) == name.endswith("weight") for name, parameter in head.named_parameters())


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_an_embedding_has_two_layers_with_a_slope_below_zero_between_them(slope):
    torch.manual_seed(0)
    head, feature = Embedding(6, 4, slope), torch.randn(5, 6)
    first, _, second = head.layers
    for row, embedded in zip(feature.tolist(), head(feature).tolist(), strict=True):
        vector = linear(second, [value if value > 0 else slope * value for value in linear(first, row)])
        assert embedded == pytest.approx([value / math.hypot(*vector) for value in vector], abs=1e-5)
