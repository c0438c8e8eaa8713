from collections import deque

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aggmatch.methods.aggmatch.aggregation import EMPTY
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def put(queue: ClassBalancedQueue, rings: list[int], sources: list[int], accept: list[bool] | None = None) -> None:
    """Enqueue recognisable candidates: the feature and distribution of source s are functions of s."""
    n = len(rings)
    source = torch.tensor(sources)
    feature = torch.stack([torch.cos(source.float()), torch.sin(source.float())], 1)
    probs = torch.stack([source.float(), -source.float(), source.float()], 1)
    accepted = torch.tensor(accept if accept is not None else [True] * n)
    queue.enqueue(feature * 3, probs, torch.tensor(rings), accepted, source, torch.zeros(n, dtype=torch.bool))


def ring_of(queue: ClassBalancedQueue, ring: int) -> list[int]:
    """Sources of a ring's filled slots, oldest first."""
    fill, position = int(queue.fill[ring]), int(queue.position[ring])
    slots = [(position - fill + i) % queue.slots for i in range(fill)]
    return [int(queue.source[ring * queue.slots + slot]) for slot in slots]


def test_slots_keep_unit_feature_distribution_and_source_together():
    queue = ClassBalancedQueue(rings=3, slots=4, features=2, classes=3)
    put(queue, [2, 0, 2], [5, 6, 7])
    for slot, source in ((8, 5), (0, 6), (9, 7)):
        s = float(source)
        assert queue.source[slot] == source
        expected = torch.stack([torch.cos(torch.tensor(s)), torch.sin(torch.tensor(s))])
        torch.testing.assert_close(queue.feature[slot], expected)
        assert queue.probs[slot].tolist() == [s, -s, s]
    assert queue.fill.tolist() == [1, 0, 2]


def test_new_candidates_replace_the_oldest():
    queue = ClassBalancedQueue(rings=1, slots=3, features=2, classes=3)
    put(queue, [0, 0], [1, 2])
    put(queue, [0, 0], [3, 4])
    assert ring_of(queue, 0) == [2, 3, 4]
    put(queue, [0], [5])
    assert ring_of(queue, 0) == [3, 4, 5]


def test_a_ring_keeps_the_last_candidates_if_it_gets_more_than_its_slots():
    queue = ClassBalancedQueue(rings=2, slots=3, features=2, classes=3)
    put(queue, [0] * 8 + [1], list(range(9)))
    assert ring_of(queue, 0) == [5, 6, 7]
    assert ring_of(queue, 1) == [8]


def test_rejected_candidates_change_no_slot():
    queue = ClassBalancedQueue(rings=2, slots=3, features=2, classes=3)
    put(queue, [0, 0, 1], [1, 2, 3], accept=[False, True, False])
    assert ring_of(queue, 0) == [2]
    assert ring_of(queue, 1) == []
    assert queue.source[:-1].tolist() == [2, -1, -1, -1, -1, -1]


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=9), max_size=6), st.integers(1, 5))
def test_every_ring_behaves_like_a_deque(batches, slots):
    queue = ClassBalancedQueue(rings=3, slots=slots, features=2, classes=3)
    model: list[deque[int]] = [deque(maxlen=slots) for _ in range(3)]
    source = 0
    for batch in batches:
        if not batch:
            continue
        sources = list(range(source, source + len(batch)))
        source += len(batch)
        put(queue, [ring for ring, _ in batch], sources, [accept for _, accept in batch])
        for (ring, accept), s in zip(batch, sources, strict=True):
            if accept:
                model[ring].append(s)
    assert [ring_of(queue, ring) for ring in range(3)] == [list(ring) for ring in model]


@given(
    fills=st.lists(st.integers(0, 11), min_size=1, max_size=4),
    slots=st.integers(1, 11),
    subsets=st.integers(1, 7),
    seed=st.integers(0, 100),
)
def test_a_split_puts_every_filled_slot_into_one_subset_evenly(fills, slots, subsets, seed):
    queue = ClassBalancedQueue(rings=len(fills), slots=slots, features=2, classes=3)
    for ring, fill in enumerate(fills):
        if fill:
            put(queue, [ring] * fill, list(range(fill)))
    slot_MS = queue.split(subsets, generator(seed)).slot
    filled_MS = slot_MS != EMPTY
    used = slot_MS[filled_MS].tolist()
    everything = [ring * slots + slot for ring, fill in enumerate(fills) for slot in range(min(fill, slots))]
    assert sorted(used) == everything
    for ring in range(len(fills)):
        sizes = ((slot_MS // slots == ring) & filled_MS).sum(1)
        assert sizes.max() - sizes.min() <= 1


def test_a_split_is_random_and_follows_its_generator():
    queue = ClassBalancedQueue(rings=2, slots=32, features=2, classes=3)
    put(queue, [0] * 32 + [1] * 32, list(range(64)))
    first, again, other = (queue.split(4, generator(seed)).slot for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    member = torch.stack([(queue.split(4, generator(seed)).slot[0] == 5).any() for seed in range(400)])
    assert member.float().mean().item() == pytest.approx(1 / 4, abs=0.07)


def test_the_state_dict_holds_the_queue():
    queue = ClassBalancedQueue(rings=2, slots=3, features=2, classes=3)
    put(queue, [0, 1, 1], [4, 5, 6])
    copy = ClassBalancedQueue(rings=2, slots=3, features=2, classes=3)
    copy.load_state_dict(queue.state_dict())
    put(queue, [1, 1], [7, 8])
    put(copy, [1, 1], [7, 8])
    assert ring_of(copy, 1) == ring_of(queue, 1) == [6, 7, 8]


def test_views_of_one_image_stay_in_one_subset_when_asked_to():
    queue = ClassBalancedQueue(rings=2, slots=24, features=2, classes=3)
    sources = [image for image in (3, 5, 9, 11) for _ in range(6)]
    put(queue, [0] * 24 + [1] * 24, sources + sources)
    for seed in range(20):
        memory = queue.split(4, generator(seed), images=20)
        for subset in memory.slot:
            assert len(subset) == 12
            for ring in (0, 1):
                slots = subset[subset // 24 == ring]
                assert len(slots) == 6
                assert len(set(queue.source[slots].tolist())) == 1
    by_slot = queue.split(4, generator(0)).slot[0]
    assert len(set(queue.source[by_slot[by_slot < 24]].tolist())) > 1
