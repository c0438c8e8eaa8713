from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tests.conftest import toy_settings
from tests.methods.steps import next_batch

from aggmatch.methods.base import TrainingSet
from aggmatch.methods.start import propagation
from aggmatch.methods.start.propagation import clearest, flattened, mixed_features, neighbour_graph, propagate
from aggmatch.training.trainer import Trainer

PHASE = {"method__propagation_steps": 12, "method__propagations": 4, "method__neighbours": 5}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def groups(sizes, spread=0.3, features=8):
    """Features around one centre for each group, and the group of each."""
    centre = 3 * torch.eye(features)[: len(sizes)]
    group = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    return centre[group] + spread * torch.randn(len(group), features, generator=seeded()), group


def even(classes):
    return torch.full((classes,), 1 / classes)


def dense_propagation(feature, given, labels, shares, neighbours):
    """The formula of `propagate`, with loops and full matrices."""
    left, deviation, _ = torch.linalg.svd(feature - feature.mean(0), full_matrices=False)
    unit = F.normalize(left * deviation.sqrt(), dim=-1)
    count, cosine = len(unit), unit @ unit.T
    adjacent = torch.zeros(count, count)
    for row in range(count):
        nearest = sorted((other for other in range(count) if other != row), key=lambda k: -cosine[row, k])
        for other in nearest[:neighbours]:
            adjacent[row, other] = torch.exp(cosine[row, other] / 0.07)
    both = adjacent + adjacent.T
    scale = both.sum(1).rsqrt()
    start = torch.zeros(count, len(shares))
    start[given, labels] = 1
    spread = start
    for _ in range(50):
        spread = 0.99 * (scale[:, None] * both * scale) @ spread + 0.01 * start
    for _ in range(20):
        spread = spread * shares / spread.sum(0)
        spread = spread / spread.sum(1, keepdim=True)
    spread[given] = start[given]
    return spread


def test_it_equals_the_formula():
    feature, _ = groups([12, 9, 14], spread=1.5)
    given, labels = torch.tensor([0, 13, 25, 30]), torch.tensor([0, 1, 2, 2])
    shares = torch.tensor([0.3, 0.3, 0.4])
    expected = dense_propagation(feature, given, labels, shares, 4)
    torch.testing.assert_close(propagate(feature, given, labels, shares, 4), expected, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("width", [6, 9])
def test_flattened_features_vary_by_the_root_of_what_they_varied(width):
    """Along their principal directions, also if some directions do not vary at all."""
    turned = torch.linalg.qr(torch.randn(width, width, generator=seeded())).Q[:6]
    feature = torch.randn(500, 6, generator=seeded(1)) * torch.tensor([9.0, 4, 2, 1, 0.5, 0.1]) @ turned + 3
    before = torch.linalg.svdvals(feature - feature.mean(0)) / 500**0.5
    after = torch.linalg.svdvals(flattened(feature)) / 500**0.5
    torch.testing.assert_close(after[:6], before[:6].sqrt(), rtol=1e-3, atol=1e-3)
    assert (after[6:] < 0.01).all()


def test_one_label_reaches_its_whole_group():
    feature, group = groups([30, 40, 50])
    found = propagate(feature, torch.tensor([0, 30, 70]), torch.tensor([0, 1, 2]), even(3), 5)
    assert torch.equal(found.argmax(-1), group)
    torch.testing.assert_close(found.sum(-1), torch.ones(120))


def test_a_group_that_no_label_reaches_is_never_counted():
    feature, group = groups([30, 30, 30], spread=0.05)
    found = propagate(feature, torch.tensor([0, 30]), torch.tensor([0, 1]), even(2), 3)
    assert (found[group == 2] == 0).all()
    assert not clearest(found, 1.0)[group == 2].any()
    assert clearest(found, 1.0)[group != 2].all()


def test_given_labels_stay_even_among_images_of_another_class():
    feature, _ = groups([30, 30])
    found = propagate(feature, torch.tensor([0, 1, 2, 30, 29]), torch.tensor([0, 0, 0, 1, 1]), even(2), 5)
    assert found[29].tolist() == [0, 1]
    assert found[28].argmax() == 0


def test_classes_get_their_shares():
    feature = torch.randn(200, 4, generator=seeded())  # one cloud
    given, labels = torch.arange(4), torch.tensor([0, 0, 0, 1])
    for share in (0.5, 0.25):
        found = propagate(feature, given, labels, torch.tensor([1 - share, share]), 10)
        assert found.mean(0)[1].item() == pytest.approx(share, abs=0.02)


def test_the_graph_is_symmetric_and_has_no_loops(monkeypatch):
    feature = F.normalize(torch.randn(40, 6, generator=seeded()), dim=-1)
    whole = neighbour_graph(feature, 4).to_dense()
    torch.testing.assert_close(whole, whole.T)
    assert (whole.diagonal() == 0).all()
    assert ((whole > 0).sum(1) >= 4).all()
    monkeypatch.setattr(propagation, "PAIRS", 100)  # two rows at a time
    torch.testing.assert_close(neighbour_graph(feature, 4).to_dense(), whole)


def test_images_that_are_all_alike_do_no_harm():
    found = propagate(torch.ones(20, 4), torch.tensor([0, 1]), torch.tensor([0, 1]), even(2), 5)
    assert found.isfinite().all()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e30])
def test_features_of_a_network_that_has_diverged_are_no_error(value):
    """The loop reports the first step whose loss is not finite, which it reads later."""
    feature = torch.randn(20, 4, generator=seeded())
    feature[3, 2] = value
    probs = propagate(feature, torch.tensor([0, 1]), torch.tensor([0, 1]), even(2), 5)
    assert clearest(probs, 0.5, 0.5).shape == (20,)


def test_the_clearest_rows_have_the_largest_margins():
    probs = torch.tensor([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.6, 0.3, 0.1], [0.0, 0.2, 0.8], [0.0, 0.0, 0.0]])
    assert clearest(probs, 0.4).tolist() == [True, False, False, True, False]
    assert clearest(probs, 0.6).tolist() == [True, False, True, True, False]
    assert clearest(probs, 1.0).tolist() == [True, False, True, True, False], "no margin, no label"
    assert clearest(probs, 0.01).sum() == 1


def test_a_part_of_the_clearest_is_chosen_class_by_class():
    """Ten clear rows of class 0, five less clear ones of class 1 and five unclear ones of class 2."""
    first = torch.cat([torch.linspace(1, 0.9, 10), torch.linspace(0.8, 0.7, 5), torch.linspace(0.6, 0.5, 5)])
    group = torch.tensor([0] * 10 + [1] * 5 + [2] * 5)
    probs = torch.zeros(20, 3)
    probs[range(20), group] = first
    probs[range(20), (group + 1) % 3] = 1 - first - 0.001
    counts = {part: clearest(probs, 0.4, part).view(4, 5).sum(1).tolist() for part in (0.0, 0.5, 1.0)}
    assert counts[0.0] == [5, 3, 0, 0], "the clearest of all are of one class"
    assert counts[1.0] == [4, 0, 2, 2], "two fifths of each class"
    assert counts[0.5] == [4, 0, 1, 1], "four of all, which include the two of class 0, and a fifth of each class"
    for start, end in ((0, 10), (10, 15), (15, 20)):
        chosen = clearest(probs, 0.4, 1.0)[start:end].tolist()
        assert chosen == sorted(chosen, reverse=True), "the clearest of each class"


def test_rows_that_no_label_reaches_are_of_no_class():
    probs = torch.tensor([[0.9, 0.1]] * 10 + [[0.1, 0.9]] * 10 + [[0.0, 0.0]] * 20)
    assert clearest(probs, 0.4, 1.0).view(4, 10).sum(1).tolist() == [4, 4, 0, 0]


def test_features_come_from_statistics_of_batches_and_leave_the_running_ones(toy_state):
    state = toy_state("aggmatch", model__name="wrn-10-1", **PHASE)
    network, pixels = state.average, state.inputs.plain
    network.eval()
    index = torch.arange(5, 60)
    training = TrainingSet(pixels=pixels, labeled=index[:3], labels=torch.zeros(3).long(), unlabeled=index)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with torch.no_grad():
        found = mixed_features(network, training, index)
    assert not network.training
    same = {name for name, buffer in network.named_buffers() if torch.equal(buffer, before[name])}
    assert {name for name in before if "running" in name} <= same
    with torch.no_grad():  # a thousand rows: each image 18 or 19 times
        expected = network.train()(pixels[index.repeat(18)]).feature[:55]
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0.02)


def test_labels_are_propagated_at_even_steps_and_count_more_and_more(toy_state, monkeypatch):
    state = toy_state("aggmatch", method__contrast_steps=3, method__propagated=[0.2, 0.8], **PHASE)
    table = state.method.start.propagation
    calls, pointer = [], table.weight.data_ptr()
    whole = propagation.propagate

    def note_and_propagate(*values):
        calls.append(state.steps_done)
        return whole(*values)

    monkeypatch.setattr(propagation, "propagate", note_and_propagate)
    counted = []
    for _ in range(20):
        state.step()
        counted.append(table.weight.sum().item())
    assert calls == [3, 6, 9, 12]
    assert counted[:3] == [0, 0, 0]
    assert [counted[step] / 90 for step in calls] == pytest.approx([0.2, 0.4, 0.6, 0.8], abs=0.05)
    assert table.weight.data_ptr() == pointer, "a captured step reads this memory"


def test_images_that_the_run_does_not_use_are_left_out(toy_data, toy_split):
    split = replace(toy_split, unlabeled=torch.arange(40))
    settings = toy_settings("aggmatch", method__propagated=[1.0, 1.0], **PHASE)
    state = Trainer(settings, toy_data, split, torch.device("cpu"))
    state.step()
    weight = state.method.state_dict()["start.propagation.weight"]
    assert weight[:40].sum() > 30
    assert weight[40:].sum() == 0


def test_the_loss_counts_the_chosen_labels_alone(toy_state):
    state = toy_state("aggmatch", **PHASE)
    state.method.refresh(0)
    table = state.method.start.propagation
    batch = next_batch(state)
    result = state.method.step(batch, state.online, state.average)
    outputs = state.online(torch.cat([*batch.labeled, *batch.unlabeled])).split([6, 6, 18])
    labeled = torch.stack([F.cross_entropy(part.logits, batch.labels) for part in outputs[:2]]).mean()
    rows = batch.unlabeled_index
    cost = F.cross_entropy(outputs[2].logits, table.label[rows], reduction="none")
    unlabeled = cost[table.weight[rows] > 0].sum() / 18
    assert result.parts["loss_labeled"].item() == pytest.approx(labeled.item(), rel=1e-4)
    assert result.parts["loss_unlabeled"].item() == pytest.approx(unlabeled.item(), rel=1e-4)
    assert result.loss.item() == pytest.approx((labeled + unlabeled).item(), rel=1e-4)
    assert torch.equal(result.pseudo.weight, table.weight[rows])
