"""The explanation of pseudo labels by the queue: shares of the slots, and examples."""

import math

import pytest
import torch
import torch.nn.functional as F

from aggmatch.functional import entropy
from aggmatch.methods import Problem
from aggmatch.methods.aggmatch import AggMatch, Config
from aggmatch.methods.aggmatch.aggregation import EMPTY
from aggmatch.methods.aggmatch.queue import QueueExplainer

SLOTS, FILL, CLASSES, FEATURES = 8, 5, 3, 4


def explainer(fill: int = FILL, **settings: object) -> QueueExplainer:
    """An explainer whose queue has got `fill` random candidates for every class."""
    config = Config(**({"slots": SLOTS, "subsets": 4, "similarity_temperature": 0.2} | settings))  # type: ignore[arg-type]
    method = AggMatch(config, Problem(classes=CLASSES, features=FEATURES, labels=6, images=60))
    generator = torch.Generator().manual_seed(0)
    ring = torch.arange(CLASSES).repeat(fill)
    if len(ring):
        method.queue.enqueue(
            torch.randn(len(ring), FEATURES, generator=generator),
            torch.randn(len(ring), CLASSES, generator=generator).softmax(-1),
            ring if config.class_balanced else torch.zeros_like(ring),
            torch.ones_like(ring, dtype=torch.bool),
            torch.arange(len(ring)) + 7,
            ring == 0,
        )
    explainer = method.explainer()
    assert isinstance(explainer, QueueExplainer)
    return explainer


def queries(count: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    feature = torch.randn(count, FEATURES, generator=generator)
    return feature, torch.randn(count, CLASSES, generator=generator).softmax(-1)


VARIANTS: list[dict[str, object]] = [
    {},
    {"class_term": "distance", "class_weight": 1.5},
    {"class_term": "none"},
    {"feature_term": False},
    {"class_balanced": False},
    {"disjoint": "images"},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("subsets", [1, 4, 7])
def test_shares_sum_to_one_and_give_the_refined_prediction(settings, subsets):
    explain = explainer(subsets=subsets, **settings)
    share = explain.attention(*queries()).share["all"]
    assert share.shape == (6, CLASSES * SLOTS)
    assert (share >= 0).all()
    torch.testing.assert_close(share.sum(1), torch.ones(6))
    torch.testing.assert_close(share @ explain.examples().probs, explain.refine(*queries()).probs)


def test_empty_slots_have_no_share():
    explain = explainer()
    share, examples = explain.attention(*queries()).share["all"], explain.examples()
    assert (share[:, examples.source == -1] == 0).all()
    assert (share[:, examples.source >= 0] > 0).all()
    assert examples.filled == (examples.source >= 0).sum() == CLASSES * FILL


def test_shares_are_a_softmax_in_each_subset_and_a_mean_over_subsets():
    explain = explainer(similarity_temperature=1.0)
    explain.memory = explain.memory._replace(slot=torch.tensor([[0, 1], [2, EMPTY], [EMPTY, EMPTY]]))
    score = torch.tensor([[math.log(3.0), 0.0, -5.0, 9.0]])
    assert explain.shares(score).tolist() == [pytest.approx([0.375, 0.125, 0.5, 0])]


def test_the_same_question_gets_the_same_answer():
    explain, again = explainer(), explainer()
    torch.manual_seed(3)  # the global generator does not matter
    for other in (explain, again):
        assert torch.equal(explain.refine(*queries()).probs, other.refine(*queries()).probs)
        assert torch.equal(explain.attention(*queries()).share["all"], other.attention(*queries()).share["all"])


def test_shares_of_a_query_do_not_depend_on_the_other_queries():
    explain, (feature, probs) = explainer(), queries()
    alone = torch.cat([explain.attention(feature[n : n + 1], probs[n : n + 1]).share["all"] for n in range(6)])
    torch.testing.assert_close(alone, explain.attention(feature, probs).share["all"])


def test_terms_are_the_cosine_and_minus_the_weighted_divergence():
    explain, (feature, probs) = explainer(class_weight=0.5), queries()
    term = explain.attention(feature, probs).term
    torch.testing.assert_close(term["feature term"], F.normalize(feature) @ explain.queue.feature[:-1].T)
    held = explain.examples().probs[0].expand_as(probs)
    divergence = entropy((probs + held) / 2) - (entropy(probs) + entropy(held)) / 2
    torch.testing.assert_close(term["class term"][:, 0], -0.5 * divergence)


def test_shares_by_one_term_ignore_the_other_term():
    both, feature_only, class_only = explainer(), explainer(class_term="none"), explainer(feature_term=False)
    share = both.attention(*queries()).share
    assert list(share) == ["feature term", "class term", "all"]
    torch.testing.assert_close(share["feature term"], feature_only.attention(*queries()).share["all"])
    torch.testing.assert_close(share["class term"], class_only.attention(*queries()).share["all"])
    assert not torch.allclose(share["feature term"], share["class term"])


@pytest.mark.parametrize(
    ("settings", "names"),
    [({"class_term": "none"}, ["feature term", "all"]), ({"feature_term": False}, ["class term", "all"])],
)
def test_a_term_that_is_off_has_no_shares(settings, names):
    assert list(explainer(**settings).attention(*queries()).share) == names


def test_examples_are_stored_under_the_class_of_their_ring():
    examples = explainer().examples()
    assert examples.label.tolist() == [y for y in range(CLASSES) for _ in range(SLOTS)]
    assert examples.source[:FILL].tolist() == [7, 10, 13, 16, 19]
    assert examples.given[:FILL].all()
    assert not examples.given[SLOTS:].any()


def test_examples_of_a_single_ring_are_stored_under_their_most_probable_class():
    explain = explainer(class_balanced=False)
    examples = explain.examples()
    assert explain.queue.rings == 1
    assert examples.filled == CLASSES * FILL
    assert torch.equal(examples.label, examples.probs.argmax(1))
    assert len(examples.label) == CLASSES * SLOTS


def test_voters_are_the_subsets_with_a_slot():
    assert (explainer(fill=2, subsets=7).subsets, explainer(fill=2, subsets=7).voters) == (7, 2)
    assert explainer(subsets=4).voters == 4


@pytest.mark.parametrize("class_balanced", [True, False])
def test_an_empty_queue_leaves_the_prediction_and_has_no_voters(class_balanced):
    explain, (feature, probs) = explainer(fill=0, class_balanced=class_balanced), queries()
    refined = explain.refine(feature, probs)
    assert torch.equal(refined.probs, probs)
    assert refined.confidence.tolist() == [0.0] * 6
    assert (explain.voters, explain.examples().filled) == (0, 0)
    assert all(not share.any() for share in explain.attention(feature, probs).share.values())


def test_refines_says_whether_the_refined_prediction_is_the_pseudo_label():
    assert explainer().refines
    assert not explainer(refine=False).refines


def test_memory_slots_are_the_capacity_of_the_rings():
    assert AggMatch.memory_slots(Config(slots=SLOTS), CLASSES) == [SLOTS] * CLASSES
    assert AggMatch.memory_slots(Config(slots=SLOTS, class_balanced=False), CLASSES) == [SLOTS * CLASSES]
    for balanced in (True, False):
        explain = explainer(class_balanced=balanced)
        capacity = AggMatch.memory_slots(explain.config, CLASSES)
        fill = explain.method.status()["queue_fill"]
        assert len(fill) == len(capacity)
        assert (fill <= torch.tensor(capacity)).all()
