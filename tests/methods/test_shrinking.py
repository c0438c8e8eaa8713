"""Unsure images: which classes are kept, the loss among them, and how AggMatch and FixMatch use it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.methods.steps import after_steps, check_same_training, record_outputs, step_result

from aggmatch.methods.base import Problem
from aggmatch.methods.shrinking import MEMORY, Shrinking, kept_classes
from aggmatch.models import Network, build_network
from aggmatch.models.heads import HeadBeside


def slowly_kept(probs, threshold):
    """Classes that are kept for one image, found by taking them away one by one."""
    order = sorted(range(len(probs)), key=lambda y: -probs[y])
    for cut in range(1, len(order)):
        kept = [order[0], *order[cut:]]
        if probs[order[0]] / sum(probs[y] for y in kept) >= threshold:
            return set(kept)
    return {order[0]}


def test_confused_classes_are_taken_away_until_the_first_is_sure():
    rows = [[0.5, 0.4, 0.06, 0.03, 0.01], [0.04, 0.96, 0, 0, 0], [0.2, 0.2, 0.25, 0.2, 0.15]]
    kept = kept_classes(torch.tensor(rows), 0.9)
    assert kept[0].tolist() == [True, False, False, True, True], "0.5 / 0.6 is too little, 0.5 / 0.54 is enough"
    assert kept[1].tolist() == [True] * 5, "a sure image keeps all classes"
    assert kept[2].tolist() == [False, False, True, False, False], "nothing is left: 0.25 / 0.4"


@given(
    st.lists(st.lists(st.floats(0.01, 1), min_size=4, max_size=4, unique=True), min_size=1, max_size=5),
    st.sampled_from([0.3, 0.6, 0.8, 0.95]),
)
def test_kept_classes_are_those_of_a_slow_search(rows, threshold):
    probs = torch.tensor(rows, dtype=torch.float64)
    probs = (probs / probs.sum(1, keepdim=True)).float()
    exact = probs.double()
    best = exact.max(1, keepdim=True).values
    ratios = best / (best + exact.sort(1).values.cumsum(1))
    if ((ratios - threshold).abs() < 1e-5).any() or ((best - threshold).abs() < 1e-5).any():
        return  # rounding decides
    expected = [slowly_kept(row, threshold) for row in exact.tolist()]
    assert [set(row.nonzero()[:, 0].tolist()) for row in kept_classes(probs, threshold)] == expected


@pytest.mark.parametrize("classes", [2, 10, 40, 5000])
@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
        ),
    ],
)
def test_of_several_most_probable_classes_the_target_alone_is_kept(classes, device):
    """Logits in bfloat16 are often equal. A target that is not kept would have an infinite loss."""
    level = torch.randint(0, 3, (50, classes), generator=torch.Generator().manual_seed(0)).to(device)
    probs = (level / level.sum(1, keepdim=True)).nan_to_num(1 / classes)
    best, target = probs.max(-1, keepdim=True)
    kept = kept_classes(probs, 0.95)
    assert kept.gather(1, target).all()
    assert ((kept & (probs == best)).sum(1) == 1).all()


@pytest.fixture
def network() -> Network:
    torch.manual_seed(0)
    return build_network("small-4", channels=1, classes=4)


def test_the_loss_equals_the_definition_and_counts_with_the_running_share_of_sure_images(network):
    shrinking = Shrinking(Problem(classes=4, features=network.features, labels=4, images=9), 0.9)
    network.head = shrinking.build_head(torch.nn.Identity())
    sure = 0.0
    for step in range(3):
        generator = torch.Generator().manual_seed(step)
        feature = torch.randn(6, network.features, generator=generator, requires_grad=True)
        probs = (4 * torch.randn(6, 4, generator=generator)).softmax(-1)
        logits = network.head.second(feature).detach().double()
        loss = 0.0
        for row, logit in zip(probs.tolist(), logits, strict=True):
            first = max(range(4), key=row.__getitem__)
            if row[first] < 0.9:
                among = [logit[y] for y in slowly_kept(row, 0.9)]
                loss += row[first] * (math.log(sum(map(math.exp, among))) - logit[first].item()) / 6
        share = sum(max(row) >= 0.9 for row in probs.tolist()) / 6
        keep = min(step / (step + 1), MEMORY)
        sure = keep * sure + (1 - keep) * share
        value = shrinking.loss(probs, feature, network)
        assert value.item() == pytest.approx(sure * loss, rel=1e-4)
    assert 0 < sure < 1
    value.backward()
    (gradient,) = torch.autograd.grad(shrinking.loss(probs, feature, network), feature)
    assert gradient.abs().sum() > 0
    assert all(weight.grad is not None for weight in network.head.second.parameters())


@pytest.mark.parametrize("row", [[1.0, 0, 0, 0], [0.25] * 4, [0.5, 0.5, 0, 0]])
def test_certain_and_hopeless_predictions_add_a_finite_loss(row, network):
    shrinking = Shrinking(Problem(classes=4, features=network.features, labels=4, images=9), 0.95)
    network.head = shrinking.build_head(torch.nn.Identity())
    shrinking.loss(torch.tensor([[1.0, 0, 0, 0]] * 3), torch.randn(3, network.features), network)  # sure ones before
    feature = torch.randn(3, network.features, requires_grad=True)
    value = shrinking.loss(torch.tensor([row] * 3), feature, network)
    (gradient,) = torch.autograd.grad(value, feature)
    assert value.isfinite()
    assert (value > 0) == (row == [0.5, 0.5, 0, 0]), "only this one has classes left that it is not confused with"
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["shrinkmatch", "aggmatch"])
def test_a_step_may_have_a_single_unlabelled_image(name, toy_state):
    state = toy_state(name, method__shrinking_weight=1.0, train__batch=1, train__unlabeled_ratio=1)
    for _ in range(3):
        state.step()
    assert state.finite


def test_two_heads_are_called_as_the_first_one():
    head = HeadBeside(torch.nn.Linear(3, 2), torch.nn.Linear(3, 5))
    feature = torch.randn(4, 3)
    assert torch.equal(head(feature), head.first(feature))
    assert head.second(feature).shape == (4, 5)


def test_shrinkmatch_without_its_loss_is_aligned_fixmatch(toy_state):
    check_same_training(toy_state("fixmatch_da"), toy_state("shrinkmatch", method__shrinking_weight=0.0))


@pytest.mark.parametrize("name", ["shrinkmatch", "aggmatch"])
def test_the_loss_of_unsure_images_is_added_with_its_weight(name, toy_state):
    changes = {"method__shrinking_weight": 0.5, "method__threshold": 0.6, "method__unlabeled_weight": 0.0}
    state, batch = after_steps(toy_state(name, **changes), 3)
    result = state.method.step(batch, state.online, state.average)
    shrinking = result.parts["loss_shrinking"].item()
    assert shrinking > 0
    assert result.loss.item() == pytest.approx(result.parts["loss_labeled"].item() + 0.5 * shrinking, rel=1e-5)


@pytest.mark.parametrize("name", ["shrinkmatch", "aggmatch"])
def test_unsure_images_count_after_the_warmup(name, toy_state):
    state = toy_state(name, method__shrinking_weight=1.0, method__threshold=0.4, method__warmup=3)
    values = []
    for step in range(12):
        state.method.refresh(step)
        result = step_result(state)
        values.append(result.parts["loss_shrinking"].item())
    assert values[:3] == [0, 0, 0]
    assert max(values[3:]) > 0


def test_with_sure_only_a_pseudo_label_of_aggmatch_needs_a_sure_prediction_of_the_network_itself(toy_state):
    """The pseudo labels have no weight in the loss, so that both runs have the same networks and queues."""
    pseudo = []
    for only in (False, True):
        changes = {"method__sure_only": only, "method__threshold": 0.6, "method__unlabeled_weight": 0.0}
        state, batch = after_steps(toy_state("aggmatch", **changes), 8)
        outputs = record_outputs(state.online)
        pseudo.append(state.method.step(batch, state.online, state.average).pseudo)
    own = outputs[0].logits[-len(batch.unlabeled_index) :].softmax(-1).amax(-1)
    sure = own >= 0.6
    assert sure.any()
    assert not sure.all()
    assert pseudo[0].weight[~sure].max() > 0.5, "a refined prediction counts however unsure the network is"
    assert torch.equal(pseudo[1].weight, pseudo[0].weight * sure)
    assert torch.equal(pseudo[1].target, pseudo[0].target)
