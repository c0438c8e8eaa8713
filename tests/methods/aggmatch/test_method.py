import pytest
import torch
from tests.methods.steps import next_batch

from aggmatch.functional import Aggregate, sharpen, soft_cross_entropy


def run(state, steps):
    for _ in range(steps):
        state.step()


def forward(network, *batches):
    output = network(torch.cat(batches))
    sizes = [len(batch) for batch in batches]
    return zip(output.feature.detach().split(sizes), output.logits.detach().split(sizes), strict=True)


def test_the_loss_weights_sharpened_aggregates_by_their_confidence(toy_state):
    state = toy_state(method__unlabeled_weight=0.5)
    run(state, 5)
    batch = next_batch(state)
    (_, labeled), (_, weak), (_, strong) = forward(state.online, *batch.labeled, *batch.unlabeled)
    captured: dict[str, Aggregate] = {}
    attend = state.method.attend
    state.method.attend = lambda *args: captured.setdefault("aggregate", attend(*args))
    result = state.method.step(batch, state.online, state.average)
    aggregated: Aggregate = captured["aggregate"]
    cost = soft_cross_entropy(sharpen(aggregated.probs, 0.5), strong)
    expected = torch.nn.functional.cross_entropy(labeled, batch.labels) + 0.5 * (aggregated.confidence * cost).mean()
    torch.testing.assert_close(result.loss.detach(), expected)
    assert result.pseudo is not None
    assert torch.equal(result.pseudo.target, aggregated.probs.argmax(-1))
    assert weak.shape == strong.shape


def test_labelled_images_always_enter_the_ring_of_their_given_label(toy_state):
    state = toy_state(method__threshold=1.0)
    batch = next_batch(state)
    state.method.step(batch, state.online, state.average)
    queue = state.method.queue
    for ring in range(3):
        expected = batch.labeled_index[batch.labels == ring].tolist()
        start = ring * queue.slots
        assert queue.source[start : start + len(expected)].tolist() == expected
        assert queue.given[start : start + len(expected)].all()
        assert queue.fill[ring] == len(expected)


def test_confident_unlabelled_images_enter_the_ring_of_their_predicted_class(toy_state):
    state = toy_state(method__threshold=0.0, method__slots=32)
    batch = next_batch(state)
    (feature, logits), _ = forward(state.average, batch.unlabeled[0], batch.labeled[0])
    state.method.step(batch, state.online, state.average)
    queue = state.method.queue
    for ring in range(3):
        members = torch.nonzero(logits.argmax(-1) == ring).flatten()
        slots = slice(ring * queue.slots, ring * queue.slots + len(members))
        assert queue.source[slots].tolist() == batch.unlabeled_index[members].tolist()
        torch.testing.assert_close(queue.probs[slots], logits[members].softmax(-1))
        torch.testing.assert_close(queue.feature[slots], torch.nn.functional.normalize(feature[members]))


def test_labelled_slots_hold_the_momentum_prediction_or_the_given_label(toy_state):
    for choice in ("prediction", "one_hot"):
        state = toy_state(method__labeled_slots=choice, method__threshold=1.0)
        batch = next_batch(state)
        state.method.step(batch, state.online, state.average)
        held = state.method.queue.probs[:-1][state.method.queue.given[:-1]]
        is_one_hot = (held.max(-1).values == 1).all()
        assert bool(is_one_hot) == (choice == "one_hot")
        torch.testing.assert_close(held.sum(-1), torch.ones(len(held)))


def test_without_a_momentum_encoder_the_online_network_fills_the_queue(toy_state):
    state = toy_state(method__momentum_encoder=False)
    batch = next_batch(state)
    state.average.forward = None  # must not be called
    state.method.step(batch, state.online, state.average)
    assert state.method.queue.fill.sum() > 0


def test_without_class_balance_there_is_one_ring_of_as_many_slots(toy_state):
    state = toy_state(method__class_balanced=False)
    run(state, 2)
    queue = state.method.queue
    assert (queue.rings, queue.slots) == (1, 48)
    assert queue.fill.tolist()[0] >= 12


def test_without_refinement_the_networks_own_prediction_is_the_target(toy_state):
    state = toy_state(method__refine=False)
    run(state, 5)
    batch = next_batch(state)
    _, (_, weak), _ = forward(state.online, *batch.labeled, *batch.unlabeled)
    result = state.method.step(batch, state.online, state.average)
    assert result.pseudo is not None
    assert torch.equal(result.pseudo.target, weak.argmax(-1))
    assert 0 < result.pseudo.weight.mean() <= 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"method__confidence": "weighting"}, [1.0, 0.5, 0.0]),
        ({"method__confidence": "thresholding", "method__vote_entropy": 0.5}, [1.0, 0.0, 0.0]),
        ({"method__confidence": "thresholding", "method__vote_entropy": 0.7}, [1.0, 1.0, 0.0]),
        ({"method__confidence": "off", "method__threshold": 0.6}, [0.0, 1.0, 1.0]),
    ],
)
def test_confidence_is_a_weight_a_mask_by_vote_entropy_or_fixmatchs_mask(toy_state, options, expected):
    method = toy_state(**options).method
    aggregated = Aggregate(torch.empty(3, 3), torch.empty(3, 3), torch.tensor([1.0, 0.5, 0.0]))
    target = torch.tensor([[0.4, 0.3, 0.3], [0.8, 0.1, 0.1], [0.6, 0.2, 0.2]])
    assert method.loss_weights(aggregated, target).tolist() == expected


@pytest.mark.parametrize("name", ["feature_term", "class_term"])
def test_both_terms_of_the_similarity_can_be_switched_off(toy_state, name):
    state, without = toy_state(), toy_state(**{f"method__{name}": False if name == "feature_term" else "none"})
    for s in (state, without):
        run(s, 4)
    captured = []
    batch = next_batch(state)
    for s in (state, without):
        s.method.load_state_dict(state.method.state_dict())
        ((feature, logits),) = forward(state.online, batch.unlabeled[0])
        memory = s.method.split(torch.Generator().manual_seed(0))
        captured.append(s.method.attend(feature, logits.softmax(-1), memory).probs)
    assert not torch.allclose(*captured)


def test_the_average_keeps_its_own_statistics(toy_state):
    own, copied = toy_state("aggmatch"), toy_state("fixmatch")
    for state in (own, copied):
        run(state, 3)
    pairs = [
        [torch.equal(a, b) for a, b in zip(s.average.buffers(), s.online.buffers(), strict=True) if a.ndim == 1]
        for s in (own, copied)
    ]
    assert not any(pairs[0])
    assert all(pairs[1])
