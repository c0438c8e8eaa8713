"""The fused kernel against the reference: in Triton's interpreter on a CPU, compiled on a GPU."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interpreter import check_in_interpreter, device, on_gpu, outside, runnable

from aggmatch.methods.aggmatch.aggregation import EMPTY, Memory, aggregate, fused_sums, reference_sums

pytest.importorskip("triton")

OPTIONS: dict[str, Any] = {"temperature": 0.1, "feature_term": True, "class_term": "divergence", "class_weight": 0.5}


def random_case(queries, subsets, slots, features, classes, seed, empty, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    count = subsets * slots
    slot = torch.randperm(count, generator=generator).view(subsets, slots)
    slot = slot.masked_fill(torch.rand(subsets, slots, generator=generator) < empty, EMPTY)
    feature = F.normalize(torch.randn(count, features, generator=generator), dim=-1)
    query = F.normalize(torch.randn(queries, features, generator=generator), dim=-1)
    probs = torch.softmax(3 * torch.randn(count, classes, generator=generator), -1)
    query_probs = torch.softmax(3 * torch.randn(queries, classes, generator=generator), -1)
    query_probs[0] = F.one_hot(torch.tensor(0), classes)  # certain predictions have zeros in them
    values = (query.to(dtype), query_probs, feature.to(dtype), probs, slot)
    return tuple(value.to(device) for value in values)


@runnable
@settings(max_examples=12 if not on_gpu else 60)
@given(
    queries=st.integers(1, 40),
    subsets=st.integers(1, 5),
    slots=st.integers(1, 40),
    features=st.integers(1, 70),
    classes=st.integers(2, 20),
    empty=st.sampled_from([0.0, 0.4, 1.0]),
    class_term=st.sampled_from(["divergence", "distance", "none"]),
    feature_term=st.booleans(),
    half=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_the_kernel_equals_the_reference_for_any_shape(
    queries, subsets, slots, features, classes, empty, class_term, feature_term, half, seed
):
    from aggmatch.kernels.aggregate import aggregate_sums

    dtype = torch.bfloat16 if half and on_gpu else torch.float32  # products of bfloat16 are wrong in the interpreter
    case = random_case(queries, subsets, slots, features, classes, seed, empty, dtype)
    options = OPTIONS | {"feature_term": feature_term, "class_term": class_term}
    mean, vote = aggregate_sums(*case, **options)
    expected_mean, expected_vote = reference_sums(*case, **options)
    torch.testing.assert_close(mean, expected_mean, atol=2e-4, rtol=2e-4)
    # Two classes that are equal up to rounding may swap a vote.
    assert (vote != expected_vote).any(-1).float().mean() <= 0.05
    torch.testing.assert_close(vote.sum(-1), expected_vote.sum(-1))


@runnable
@pytest.mark.parametrize(("queries", "classes"), [(70, 3), (33, 140), (5, 520)])
def test_several_blocks_of_queries_and_many_classes_equal_the_reference(queries, classes):
    from aggmatch.kernels.aggregate import aggregate_sums

    case = random_case(queries, 2, 20, 9, classes, 0, 0.2)
    for found, expected in zip(aggregate_sums(*case, **OPTIONS), reference_sums(*case, **OPTIONS), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@runnable
def test_a_program_with_several_subsets_sums_them(monkeypatch):
    from aggmatch.kernels import aggregate as kernels

    monkeypatch.setattr(kernels, "SCRATCH", 4 * 7 * 3 * 2)  # two groups for five subsets: the last turn is half empty
    assert kernels.tile_sizes(7, 9, 3, 5, 20).groups == 2
    case = random_case(7, 5, 20, 9, 3, 0, 0.2)
    for found, expected in zip(kernels.aggregate_sums(*case, **OPTIONS), reference_sums(*case, **OPTIONS), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@runnable
@pytest.mark.parametrize("class_term", ["divergence", "distance"])
def test_a_slot_with_the_prediction_of_the_query_has_distance_zero(class_term):
    from aggmatch.kernels.aggregate import aggregate_sums

    query, query_probs, feature, probs, slot = random_case(8, 1, 40, 9, 7, 0, 0.0)
    probs[:8] = query_probs  # rounding may give a negative divergence, which has no root
    options = OPTIONS | {"feature_term": False, "class_term": class_term, "class_weight": 5.0}
    case = (query, query_probs, feature, probs, slot)
    found, expected = aggregate_sums(*case, **options)[0], reference_sums(*case, **options)[0]
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)


@outside
def test_the_kernel_in_the_interpreter():
    check_in_interpreter(__file__, 8)


def test_with_too_many_classes_the_reference_runs():
    from aggmatch.kernels.aggregate import aggregate_sums, most_classes

    most = most_classes(torch.device(device))
    assert fused_sums(most, torch.device(device)) is aggregate_sums
    assert fused_sums(most + 1, torch.device(device)) is reference_sums


@pytest.mark.gpu
@pytest.mark.skipif(not on_gpu, reason="needs a CUDA device")
@pytest.mark.parametrize(
    ("queries", "classes", "slots", "features", "subsets"),
    [(448, 10, 2048, 128, 64), (336, 100, 256, 512, 64), (448, 1000, 64, 512, 64), (40, 2048, 4, 64, 8)],
)
def test_the_shapes_of_the_paper_agree_and_take_little_memory(queries, classes, slots, features, subsets):
    from aggmatch.kernels.aggregate import aggregate_sums

    case = random_case(queries, subsets, classes * slots // subsets, features, classes, 0, 0.1)
    options = OPTIONS | {"temperature": 0.05}
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    mean, vote = aggregate_sums(*case, **options)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < 200e6
    expected_mean, expected_vote = reference_sums(*case, **options)
    torch.testing.assert_close(mean, expected_mean, atol=5e-3, rtol=2e-3)
    assert (vote != expected_vote).any(-1).float().mean() < 0.02
    memory = Memory(case[2], case[3], case[4])
    result = aggregate(case[0], case[1], memory, temperature=0.05)
    torch.testing.assert_close(result.probs, expected_mean / subsets, atol=1e-4, rtol=2e-3)
