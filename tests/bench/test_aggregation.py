"""The benchmark of the aggregation alone."""

import pytest
import torch

from aggmatch.bench import aggregation
from aggmatch.bench.aggregation import OPTIONS, SHAPES, Shape, measure_aggregation, random_case
from aggmatch.bench.timing import Effort
from aggmatch.methods.aggmatch.aggregation import reference_sums

SMALL = Shape("small", classes=3, slots=4, subsets=2, queries=5, features=6)
CPU = torch.device("cpu")


def test_there_is_one_logarithm_for_each_query_slot_and_class():
    assert SMALL.logarithms == 5 * 12 * 3
    assert SHAPES["cuda"][0].logarithms == 448 * 20480 * 10


@pytest.mark.parametrize("shape", [*SHAPES["cuda"], *SHAPES["cpu"]], ids=lambda shape: shape.name)
def test_subsets_of_the_slots_have_equal_sizes(shape):
    assert shape.classes * shape.slots % shape.subsets == 0


def test_the_random_case_is_a_valid_input_of_the_aggregation():
    mean, vote = reference_sums(*random_case(SMALL, CPU), **OPTIONS)
    torch.testing.assert_close(mean.sum(-1), torch.full((5,), 2.0))
    torch.testing.assert_close(vote.sum(-1), torch.full((5,), 2.0))


def test_a_cpu_measures_only_the_plain_form():
    found = measure_aggregation(SMALL, Effort(CPU, wanted=3))
    assert found["fused"] is None
    assert found["plain_over_fused"] is None
    assert found["plain"]["calls"] == 3
    assert 0 < found["plain"]["p5_ms"] <= found["plain"]["median_ms"] <= found["plain"]["p95_ms"]
    assert found["logarithms_per_second"] == pytest.approx(SMALL.logarithms / found["plain"]["median_ms"] * 1e3)


def test_a_form_that_needs_too_much_memory_has_no_result(monkeypatch):
    def too_large(*_, **__):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(aggregation, "reference_sums", too_large)
    found = measure_aggregation(SMALL, Effort(CPU, wanted=3))
    assert found["plain"] is None
    assert found["logarithms_per_second"] is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_measures_time_and_memory_of_both_forms():
    found = measure_aggregation(SHAPES["cuda"][0], Effort(torch.device("cuda"), wanted=5))
    assert found["plain_over_fused"] == pytest.approx(found["plain"]["median_ms"] / found["fused"]["median_ms"])
    assert 0 < found["fused"]["extra_memory_bytes"] < found["plain"]["extra_memory_bytes"]
