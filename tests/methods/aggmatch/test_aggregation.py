import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import jensenshannon

from aggmatch.methods.aggmatch import aggregation
from aggmatch.methods.aggmatch.aggregation import EMPTY, Memory, aggregate, pairwise_jensen_shannon, similarity_terms


def random_case(queries=5, subsets=3, slots=6, features=4, classes=3, seed=0, empty=0.0):
    generator = torch.Generator().manual_seed(seed)
    feature = torch.randn(queries, features, generator=generator)
    probs = torch.softmax(2 * torch.randn(queries, classes, generator=generator), -1)
    count = subsets * slots
    slot = torch.randperm(count, generator=generator).view(subsets, slots)
    memory = Memory(
        F.normalize(torch.randn(count, features, generator=generator), dim=-1),
        torch.softmax(2 * torch.randn(count, classes, generator=generator), -1),
        slot.masked_fill(torch.rand(subsets, slots, generator=generator) < empty, EMPTY),
    )
    return feature, probs, memory


def oracle(feature, probs, memory, temperature, class_weight, class_term="divergence", feature_term=True):
    """The definition, sample by sample and slot by slot, in double precision and plain Python."""
    results = []
    for v, p in zip(feature.double().tolist(), probs.double().tolist(), strict=True):
        hypotheses = []
        for subset in memory.slot.tolist():
            weighted, total = [0.0] * len(p), 0.0
            for slot in subset:
                if slot == EMPTY:
                    continue
                k, q = memory.feature[slot].double().tolist(), memory.probs[slot].double().tolist()
                score = 0.0
                if feature_term:
                    score += sum(a * b for a, b in zip(v, k, strict=True)) / math.hypot(*v) / math.hypot(*k)
                js = 0.0
                for a, b in zip(p, q, strict=True):
                    mean = (a + b) / 2
                    js += (a * math.log(a / mean) / 2 if a else 0) + (b * math.log(b / mean) / 2 if b else 0)
                if class_term == "divergence":
                    score -= class_weight * js
                elif class_term == "distance":
                    score -= class_weight * math.sqrt(max(js, 0))
                weight = math.exp(score / temperature)
                total += weight
                weighted = [w + weight * b for w, b in zip(weighted, q, strict=True)]
            if total:
                hypotheses.append([w / total for w in weighted])
        if not hypotheses:
            results.append((p, [0.0] * len(p), 0.0))
            continue
        mean = [sum(column) / len(hypotheses) for column in zip(*hypotheses, strict=True)]
        votes = [0.0] * len(p)
        for hypothesis in hypotheses:
            votes[hypothesis.index(max(hypothesis))] += 1 / len(hypotheses)
        confidence = math.exp(sum(a * math.log(a) for a in votes if a))
        results.append((mean, votes, confidence))
    return [torch.tensor(column) for column in zip(*results, strict=True)]


@settings(deadline=None)
@given(
    queries=st.integers(1, 4),
    subsets=st.integers(1, 5),
    slots=st.integers(1, 6),
    classes=st.integers(2, 5),
    empty=st.sampled_from([0.0, 0.4, 0.9, 1.0]),
    class_term=st.sampled_from(["divergence", "distance", "none"]),
    feature_term=st.booleans(),
    temperature=st.sampled_from([0.05, 0.3, 2.0]),
    seed=st.integers(0, 10_000),
)
def test_aggregation_equals_its_definition(
    queries, subsets, slots, classes, empty, class_term, feature_term, temperature, seed
):
    feature, probs, memory = random_case(queries, subsets, slots, classes=classes, seed=seed, empty=empty)
    options = {"class_weight": 0.5, "class_term": class_term, "feature_term": feature_term}
    result = aggregate(feature, probs, memory, temperature=temperature, **options)
    mean, votes, confidence = oracle(feature, probs, memory, temperature, **options)
    torch.testing.assert_close(result.probs, mean.float(), atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(result.vote, votes.float(), atol=1e-6, rtol=0)
    torch.testing.assert_close(result.confidence, confidence.float(), atol=1e-5, rtol=0)


def test_one_subset_without_a_class_term_is_plain_attention():
    feature, probs, memory = random_case(subsets=1)
    result = aggregate(feature, probs, memory, temperature=0.1, class_weight=0.0)
    expected = F.scaled_dot_product_attention(F.normalize(feature, dim=-1), memory.feature, memory.probs, scale=1 / 0.1)
    torch.testing.assert_close(result.probs, expected)
    assert result.confidence.tolist() == [1.0] * len(feature)


def test_a_query_prefers_slots_with_similar_predictions():
    """The sign of the class term: taken literally, the paper's formula would prefer the unlike slot."""
    feature = torch.tensor([[1.0, 0.0]])
    memory = Memory(
        torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.9, 0.1], [0.1, 0.9]]), torch.tensor([[0, 1]])
    )
    like = aggregate(feature, torch.tensor([[0.9, 0.1]]), memory, temperature=0.05)
    assert like.probs[0, 0] > 0.85


@given(st.integers(0, 1000), st.integers(2, 6))
def test_confidence_is_one_exactly_when_all_subsets_agree(seed, subsets):
    feature, probs, memory = random_case(subsets=subsets, seed=seed)
    result = aggregate(feature, probs, memory, temperature=0.5)
    unanimous = result.vote.max(-1).values == 1
    assert torch.equal(result.confidence == 1, unanimous)
    assert (result.confidence >= 1 / min(subsets, 3) - 1e-6).all()
    torch.testing.assert_close(result.probs.sum(-1), torch.ones(len(feature)))


def test_an_empty_queue_returns_the_prediction_with_confidence_zero():
    feature, probs, memory = random_case(empty=1.1)
    result = aggregate(feature, probs, memory, temperature=0.05)
    torch.testing.assert_close(result.probs, probs)
    assert result.confidence.tolist() == [0.0] * len(feature)


def test_an_empty_subset_does_not_vote():
    feature, probs, memory = random_case(subsets=3)
    kept = memory._replace(slot=memory.slot[[0, 2]])
    memory.slot[1] = EMPTY
    for with_empty, without in zip(
        aggregate(feature, probs, memory, temperature=0.1),
        aggregate(feature, probs, kept, temperature=0.1),
        strict=True,
    ):
        torch.testing.assert_close(with_empty, without)


def test_a_tiny_temperature_stays_finite():
    result = aggregate(*random_case(empty=0.5), temperature=1e-4)
    assert all(torch.isfinite(part).all() for part in result)


def test_blocks_of_queries_give_the_same_as_all_at_once(monkeypatch):
    case = random_case(subsets=7)
    at_once = aggregate(*case, temperature=0.05)
    monkeypatch.setattr(aggregation, "PAIRS", (1, 1))
    for left, right in zip(at_once, aggregate(*case, temperature=0.05), strict=True):
        torch.testing.assert_close(left, right)


def random_probs(count, classes, seed, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(scale * torch.randn(count, classes, generator=generator), -1)


def test_jensen_shannon_of_all_pairs_agrees_with_scipy():
    left, right = random_probs(7, 5, seed=1), random_probs(9, 5, seed=2)
    expected = torch.tensor([[jensenshannon(p, q) ** 2 for q in right.double()] for p in left.double()])
    torch.testing.assert_close(pairwise_jensen_shannon(left, right).double(), expected, atol=1e-6, rtol=1e-5)


def test_jensen_shannon_of_opposite_certainties_is_log_two_and_of_equals_zero():
    certain = torch.eye(2)
    expected = torch.tensor([[0.0, math.log(2)], [math.log(2), 0.0]])
    torch.testing.assert_close(pairwise_jensen_shannon(certain, certain), expected)


@given(st.integers(0, 1000), st.floats(0.1, 20))
def test_jensen_shannon_is_symmetric_and_bounded(seed, scale):
    left, right = random_probs(3, 4, seed, scale), random_probs(5, 4, seed + 1, scale)
    js = pairwise_jensen_shannon(left, right)
    torch.testing.assert_close(js, pairwise_jensen_shannon(right, left).T)
    assert ((js >= 0) & (js <= math.log(2))).all()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_aggregation_on_the_gpu_equals_the_cpu():
    feature, probs, memory = random_case(queries=64, subsets=8, slots=40, features=128, classes=10)
    reference = aggregate(feature, probs, memory, temperature=0.05)
    result = aggregate(feature.cuda(), probs.cuda(), Memory(*(part.cuda() for part in memory)), temperature=0.05)
    for left, right in zip(result, reference, strict=True):
        torch.testing.assert_close(left.cpu(), right, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("class_term", ["divergence", "distance"])
def test_the_terms_of_the_similarity_are_the_cosine_and_minus_the_divergence(class_term):
    query, feature = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.6, 0.8], [-1.0, 0.0]])
    probs, held = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    options = {"feature_term": True, "class_term": class_term, "class_weight": 0.5}
    terms = similarity_terms(query, probs, feature, held, **options)
    most = math.log(2) if class_term == "divergence" else math.sqrt(math.log(2))
    assert terms.feature.tolist() == [pytest.approx([0.6, -1])]
    assert terms.classes.tolist() == [pytest.approx([0, -0.5 * most], abs=1e-3)]
    assert torch.equal(terms.total, terms.feature + terms.classes)


@pytest.mark.parametrize(
    ("options", "zero"),
    [
        ({"feature_term": False, "class_term": "divergence", "class_weight": 0.5}, "feature"),
        ({"feature_term": True, "class_term": "none", "class_weight": 0.5}, "classes"),
        ({"feature_term": True, "class_term": "divergence", "class_weight": 0.0}, "classes"),
    ],
)
def test_a_term_that_is_off_is_zero(options, zero):
    feature, probs, memory = random_case()
    terms = similarity_terms(feature, probs, memory.feature, memory.probs, **options)
    assert [name for name in ("feature", "classes") if not getattr(terms, name).any()] == [zero]
