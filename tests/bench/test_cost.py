"""The lower bound of a step: operations and bytes, compared with a count by hand."""

from functools import partial

import pytest
import torch

from aggmatch.bench import cost
from aggmatch.bench.cost import Floor, Rates, activation_values, bytes_moved, count_products, find_floor
from aggmatch.bench.stages import ONLINE, Pieces

SMALL_4 = [  # inputs, outputs, side of the output of the six convolutions of small-4 on 8 × 8 pixels
    (1, 4, 8),
    (4, 4, 8),
    (4, 8, 4),
    (8, 8, 4),
    (8, 16, 2),
    (16, 16, 2),
]
IMAGES, LEARNED, FEATURES, CLASSES = 6 + 2 * 18, 6 + 18, 16, 3
"""Of a FixMatch step on the toy data: 6 labelled images, and 18 unlabelled images in two views."""


def forward_flops(images: int) -> int:
    return images * sum(2 * 9 * inputs * outputs * side**2 for inputs, outputs, side in SMALL_4)


def test_operations_of_a_step_equal_a_count_by_hand(toy_state):
    state = toy_state("fixmatch")
    indices = state.draw_indices()
    first_inputs = LEARNED * 2 * 9 * 1 * 4 * 8**2  # the images themselves need no gradient
    convolutions = forward_flops(IMAGES) + 2 * forward_flops(LEARNED) - first_inputs
    classifier = 3 * 2 * IMAGES * FEATURES * CLASSES
    assert count_products(lambda: state.compute(*indices)) == convolutions + classifier


def test_images_that_only_give_targets_have_no_backward_pass(toy_state):
    state = toy_state("fixmatch")
    batch = state.make_batch(*state.draw_indices())
    images = torch.cat([*batch.labeled, *batch.unlabeled])

    def learn(targets):
        output = state.online(images, targets=targets)
        output.logits.sum().backward()

    everything, part = (count_products(partial(learn, targets)) for targets in (0, 18))
    backward = 2 * forward_flops(1) - 2 * 9 * 1 * 4 * 8**2
    assert everything - part == 18 * backward


def test_the_number_of_activations_equals_a_count_by_hand(toy_state):
    backbone = toy_state("fixmatch").online.backbone
    convolutions = sum(outputs * side**2 for _, outputs, side in SMALL_4)
    assert activation_values(backbone, torch.Size((1, 8, 8))) == 2 * convolutions, "each is normalised once"
    assert activation_values(backbone, torch.Size((1, 16, 16))) == 4 * 2 * convolutions
    assert next(backbone.parameters()).device.type == "cpu", "the network itself does not move"
    assert not backbone.layers[0]._forward_hooks


def test_bytes_count_all_images_and_the_gradients_of_trained_images(toy_state):
    state = toy_state("fixmatch")
    calls = Pieces(state).calls[ONLINE]
    values = activation_values(state.online.backbone, torch.Size((1, 8, 8)))
    assert bytes_moved(state.online, calls) == 2 * 4 * values * (IMAGES + LEARNED)
    state.online.mixed = True
    assert bytes_moved(state.online, calls) == 2 * 2 * values * (IMAGES + LEARNED)
    state.online.requires_grad_(False)
    assert bytes_moved(state.online, calls) == 2 * 2 * values * IMAGES


def test_the_momentum_network_counts_without_gradients(toy_state):
    state = toy_state("aggmatch")
    found = find_floor(Pieces(state))
    values = activation_values(state.online.backbone, torch.Size((1, 8, 8)))
    assert found.bytes == 2 * 4 * values * (IMAGES + LEARNED + 24)
    assert found.flops > count_products(lambda: toy_state("fixmatch").step()) + forward_flops(24)


def test_the_larger_of_both_bounds_is_the_floor():
    rates = Rates(flops=100.0, bytes=10.0, arithmetic="float32")
    assert Floor(200, 10, rates).seconds == 2.0
    assert Floor(200, 50, rates).seconds == 5.0
    found = Floor(200, 50, rates).to_dict()
    assert found == {
        "flops": 200,
        "bytes": 50,
        "compute_ms": 2e3,
        "memory_ms": 5e3,
        "floor_ms": 5e3,
        "rates": {"flops_per_second": 100.0, "bytes_per_second": 10.0, "arithmetic": "float32"},
    }


def test_rates_are_measured_once_and_restore_the_precision(monkeypatch):
    monkeypatch.setitem(cost.SIDES, "cpu", 64)
    monkeypatch.setitem(cost.COPIED, "cpu", 2**16)
    cost.best_rates.cache_clear()
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        rates = cost.best_rates(torch.device("cpu"), torch.float32)
        assert rates is cost.best_rates(torch.device("cpu"), torch.float32)
    finally:
        cost.best_rates.cache_clear()
    assert rates.arithmetic == "float32"
    assert 1e6 < rates.flops < 1e13
    assert 1e6 < rates.bytes < 1e13
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_the_fastest_of_several_calls_counts(monkeypatch):
    monkeypatch.setattr(cost, "call_times", lambda *_: [0.001, 0.002, 3.0, 2.0, 4.0])
    assert cost.fastest(pytest.fail, torch.device("cpu")) == 2.0, "the first two do not count"
