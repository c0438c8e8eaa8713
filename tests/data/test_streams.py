import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aggmatch.data import streams
from aggmatch.data.randomness import permutations
from aggmatch.data.streams import BalancedStream, IndexStream
from aggmatch.errors import AggMatchError

QUICK = settings(max_examples=25)


def take(stream: IndexStream, batches: int) -> torch.Tensor:
    return torch.cat([stream.next() for _ in range(batches)])


@given(size=st.integers(1, 50), batch=st.integers(1, 64), seed=st.integers(0, 2**40))
@QUICK
def test_every_epoch_holds_every_index_once(size, batch, seed):
    indices = torch.arange(size) * 3 + 5
    epochs = take(IndexStream(indices, batch, seed), -(-4 * size // batch))[: 4 * size].view(4, size)
    assert torch.equal(epochs.sort(dim=1).values, indices.expand(4, size))


def test_epochs_hold_every_index_once_across_blocks_too():
    size = 40_000  # two epochs to a block
    epochs = take(IndexStream(torch.arange(size), 30_000, 1), 8).view(6, size)
    assert torch.equal(epochs.sort(dim=1).values, torch.arange(size).expand(6, size))
    for first, second in [(0, 1), (1, 2), (0, 2), (3, 5)]:
        assert (epochs[first] == epochs[second]).float().mean() < 0.01


def test_a_batch_longer_than_a_block_is_complete():
    whole = IndexStream(torch.arange(10), 3 * streams.BLOCK, 4).next()
    assert torch.equal(whole, take(IndexStream(torch.arange(10), streams.BLOCK // 4, 4), 12))


@given(size=st.integers(1, 30), batch=st.integers(1, 9), times=st.integers(1, 4), seed=st.integers(0, 99))
@QUICK
def test_the_size_of_a_batch_does_not_change_the_order(size, batch, times, seed):
    indices = torch.arange(size)
    large, small = IndexStream(indices, batch * times, seed), IndexStream(indices, batch, seed)
    for _ in range(5):
        assert torch.equal(take(small, times), large.next())
        assert small.state_dict() == large.state_dict()


@pytest.mark.parametrize(("size", "batch"), [(50_000, 20_000), (10, 100_000)])
def test_the_size_of_a_batch_does_not_change_the_order_across_blocks(size, batch):
    indices = torch.arange(size)
    large, small = IndexStream(indices, 3 * batch, 2), IndexStream(indices, batch, 2)
    for _ in range(5):
        assert torch.equal(take(small, 3), large.next())


@pytest.mark.parametrize("size", [7, 40_000])
@pytest.mark.parametrize("done", [0, 1, 9, 10])
def test_a_resumed_stream_continues_exactly(size, done):
    indices, batch = torch.arange(size), 16_000
    stopped = IndexStream(indices, batch, 5)
    for _ in range(done):
        stopped.next()
    state = json.loads(json.dumps(stopped.state_dict()))
    resumed = IndexStream(indices, batch, 5)
    resumed.next()  # the position before loading does not matter
    resumed.load_state_dict(state)
    assert torch.equal(take(resumed, 8), take(stopped, 8))


def test_the_state_is_two_integers():
    stream = IndexStream(torch.arange(10), 4, 0)
    take(stream, 3)
    assert stream.state_dict() == {"block": 0, "position": 12}


@pytest.mark.parametrize(
    "state",
    [{}, {"block": 0}, {"block": -1, "position": 0}, {"block": 0, "position": -1}, {"block": 0, "position": 10**6}],
)
def test_a_state_of_another_stream_fails(state):
    stream = IndexStream(torch.arange(10), 4, 0)
    with pytest.raises(AggMatchError, match="A stream of 10 indices cannot continue from"):
        stream.load_state_dict(state)
    assert stream.state_dict() == {"block": 0, "position": 0}


def test_neighbouring_seeds_and_blocks_are_independent():
    size = streams.BLOCK
    orders = [take(IndexStream(torch.arange(size), size, seed), 2).view(2, size) for seed in (0, 1)]
    blocks = torch.cat(orders)
    for first in range(4):
        for second in range(first):
            assert (blocks[first] == blocks[second]).sum() < 12  # one match on average


def test_a_stream_neither_reads_nor_changes_global_state():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = take(IndexStream(torch.arange(100), 10, 3), 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(take(IndexStream(torch.arange(100), 10, 3), 5), first)


def test_orders_are_made_once_per_block_and_batches_share_their_memory(monkeypatch):
    made = []

    def counted(*arguments):
        made.append(arguments)
        return permutations(*arguments)

    monkeypatch.setattr(streams, "permutations", counted)
    stream = IndexStream(torch.arange(10), 64, 0)
    batches = [stream.next() for _ in range(1000)]
    assert len(made) == 1
    assert len({batch.untyped_storage().data_ptr() for batch in batches}) == 1


def test_an_empty_batch_fails():
    with pytest.raises(AggMatchError, match="at least 1 index, got 0"):
        IndexStream(torch.arange(3), 0, 0)


def test_a_balanced_batch_holds_equally_many_of_each_class():
    labels = torch.tensor([0, 0, 0, 1, 2, 2])
    stream = BalancedStream(torch.arange(6), labels, ("cat", "dog", "horse"), 6, 0)
    for _ in range(4):
        assert labels[stream.next()].tolist() == [0, 0, 1, 1, 2, 2]


def test_a_batch_size_that_cannot_be_balanced_fails():
    with pytest.raises(AggMatchError, match="train.batch must be a multiple of 2, .*, got 3"):
        BalancedStream(torch.arange(2), torch.tensor([0, 1]), ("cat", "dog"), 3, 0)


def test_the_error_names_a_class_that_lost_all_labels_to_noise():
    with pytest.raises(AggMatchError, match="No image has the label 'dog'.*data.noise_rate"):
        BalancedStream(torch.arange(3), torch.tensor([0, 2, 2]), ("cat", "dog", "horse"), 3, 0)
