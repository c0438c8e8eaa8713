import pytest
import torch
import torch.nn.functional as F
from tests.methods.steps import next_batch, step_result

from aggmatch.functional import soft_cross_entropy
from aggmatch.methods.comatch import CoMatch, Config, Memory
from aggmatch.methods.fixmatch import Config as FixMatchConfig
from aggmatch.methods.fixmatch import FixMatch


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def test_smoothing_waits_for_a_full_memory_and_then_mixes():
    memory, probs, embedding = Memory(4, 2, 3), torch.randn(2, 3).softmax(-1), unit(2, 2)
    stored, places = torch.randn(4, 3).softmax(-1), unit(4, 2, seed=1)
    memory.write(stored[:3], places[:3])
    assert torch.equal(memory.smooth(probs, embedding, 0.9, 0.2), probs)
    memory.write(stored[3:], places[3:])
    weight = (embedding @ places.T / 0.2).softmax(-1)
    torch.testing.assert_close(memory.smooth(probs, embedding, 0.9, 0.2), 0.9 * probs + 0.1 * weight @ stored)


def test_the_memory_keeps_the_newest_rows_also_across_its_end():
    memory = Memory(5, 1, 1)
    for start in (0, 3, 6):
        memory.write(torch.arange(start, start + 3.0)[:, None], torch.zeros(3, 1))
    assert sorted(memory.probs.flatten().tolist()) == [4, 5, 6, 7, 8]
    memory.write(torch.arange(20.0)[:, None], torch.zeros(20, 1))
    assert sorted(memory.probs.flatten().tolist()) == [15, 16, 17, 18, 19]


def test_a_batch_is_not_in_its_own_smoothing(toy_state):
    state = toy_state("comatch")
    for _ in range(3):
        state.step()
    stored = state.method.memory.probs.clone()
    seen: dict[str, torch.Tensor] = {}
    smooth = state.method.memory.smooth
    state.method.memory.smooth = lambda *rest: seen.update(probs=state.method.memory.probs.clone()) or smooth(*rest)
    step_result(state)
    assert torch.equal(seen["probs"], stored)
    assert not torch.equal(state.method.memory.probs, stored)


def test_the_graph_loss_by_hand(toy_state):
    method = toy_state("comatch", method__edge_threshold=0.5, method__temperature=0.5).method
    target = torch.tensor([[1.0, 0, 0], [0.8, 0.2, 0], [0, 0, 1.0]])
    first, second = unit(3, 4), unit(3, 4, seed=1)
    graph = torch.tensor([[1, 0.8, 0], [0.8, 1, 0], [0, 0, 1]])
    expected = soft_cross_entropy(graph / graph.sum(1, keepdim=True), first @ second.T / 0.5).mean()
    torch.testing.assert_close(method.contrast(target, first, second), expected)


def test_without_edges_the_graph_loss_is_instance_discrimination(toy_state):
    method = toy_state("comatch", method__edge_threshold=1.5).method
    first, second = unit(6, 4), unit(6, 4, seed=1)
    expected = F.cross_entropy(first @ second.T / 0.2, torch.arange(6))
    torch.testing.assert_close(method.contrast(torch.randn(6, 3).softmax(-1), first, second), expected)


def test_without_memory_and_graph_it_is_aligned_fixmatch_with_soft_targets(toy_state):
    state = toy_state("comatch")
    batch = next_batch(state)
    problem = state.method.problem
    comatch = CoMatch(Config(own_share=1.0, contrast_weight=0.0, threshold=0.4, embedding=8), problem)
    fixmatch = FixMatch(FixMatchConfig(threshold=0.4, alignment="uniform", targets="soft"), problem)
    ours = comatch.step(batch, state.online, state.average)
    weak, strong, other = batch.unlabeled
    images = torch.cat([*batch.labeled, strong, other, weak])
    labeled, first, _, last = state.online(images).split([len(batch.labels), *[len(weak)] * 3])
    probs = fixmatch.align(last.logits.softmax(-1))
    kept = (probs.amax(-1) >= 0.4).float()
    expected = F.cross_entropy(labeled.logits, batch.labels) + (kept * soft_cross_entropy(probs, first.logits)).mean()
    assert ours.loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_the_two_strong_views_differ(toy_state):
    state = toy_state("comatch")
    _, first, second = next_batch(state).unlabeled
    assert not torch.equal(first, second)
