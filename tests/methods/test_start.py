import pytest
import torch
import torch.nn.functional as F

from aggmatch.methods import builtin_methods, load_method
from aggmatch.methods.shared import StartingMethod, rotate_quarters
from aggmatch.recipes import NAMED

STARTING = [name for name in sorted(builtin_methods()) if issubclass(load_method(name), StartingMethod)]
START = {"method__labeled_views": "both", "method__rotation_weight": 0.5, "method__rotated": 8}


def test_fixmatch_and_its_relatives_have_the_same_start_as_aggmatch():
    assert set(STARTING) == {"aggmatch", "fixmatch", "fixmatch_da", "flexmatch", "freematch", "softmatch"}
    assert set(STARTING) == set(NAMED["cold-start"])


def test_a_quarter_of_the_images_is_rotated_each_way():
    images = torch.arange(9 * 2 * 2).view(9, 1, 2, 2)
    turned = rotate_quarters(images, 8)
    assert len(turned) == 8
    for part in range(4):
        for number in (2 * part, 2 * part + 1):
            assert torch.equal(turned[number], torch.rot90(images[number], part, (1, 2)))
    assert len(rotate_quarters(images, 100)) == 8, "no more than there are, and equally many each way"


@pytest.mark.parametrize("method", STARTING)
def test_the_loss_adds_both_views_of_labelled_images_and_the_rotation_task(method, toy_state):
    others = {"method__fairness_weight": 0.0} if method == "freematch" else {}
    state = toy_state(method, **START, method__unlabeled_weight=0.0, **others)
    batch = state.make_batch(*state.draw_indices())
    weak_view, strong_view = batch.unlabeled
    rotated = rotate_quarters(weak_view, 8)
    images = torch.cat([*batch.labeled, rotated, strong_view, weak_view])
    n, m = len(batch.labels), len(weak_view)
    first, second, turned, _, _ = state.online(images).split([n, n, 8, m, m])
    labeled = (F.cross_entropy(first.logits, batch.labels) + F.cross_entropy(second.logits, batch.labels)) / 2
    rotation = F.cross_entropy(state.online.head(turned.feature), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
    result = state.method.step(batch, state.online, state.average)
    assert result.parts["loss_labeled"].item() == pytest.approx(labeled.item(), rel=1e-4)
    assert result.parts["loss_rotation"].item() == pytest.approx(rotation.item(), rel=1e-4)
    assert result.loss.item() == pytest.approx((labeled + 0.5 * rotation).item(), rel=1e-4)


@pytest.mark.parametrize("method", STARTING)
def test_pseudo_labels_count_after_the_warmup(method, toy_state):
    thresholds = {"method__threshold": 0.0} if method.startswith("fixmatch") else {}
    state = toy_state(method, method__warmup=2, **thresholds)
    differences, weights = [], []
    for step in range(4):
        state.method.refresh(step)
        result = state.method.step(state.make_batch(*state.draw_indices()), state.online, state.average)
        differences.append((result.loss - result.parts["loss_labeled"]).item())
        weights.append(result.pseudo.weight.sum().item())
    assert differences[:2] == weights[:2] == [0, 0]
    assert all(value > 0 for value in differences[2:] + weights[2:])


@pytest.mark.parametrize("method", STARTING)
def test_the_rotation_task_ends_after_its_steps(method, toy_state):
    state = toy_state(method, **START, method__rotation_steps=2)
    head = state.online.head.weight
    turned, learned = [], []
    for _ in range(4):
        before = head.detach().clone()
        state.step()
        turned.append(state.meters.read()["loss_rotation"])
        learned.append(not torch.equal(head, before))
    assert [loss > 0 for loss in turned] == learned == [True, True, False, False]


def test_the_step_is_captured_anew_when_the_rotation_task_ends(toy_state, monkeypatch):
    state = toy_state("fixmatch", **START, method__rotation_steps=2)
    begun, begin = [], state.begin_stage

    def note_and_begin():
        begun.append(state.steps_done)
        begin()

    monkeypatch.setattr(state, "begin_stage", note_and_begin)
    for _ in range(4):
        state.step()
    assert begun == [2]


@pytest.mark.parametrize("method", STARTING)
def test_a_restored_state_continues_the_warmup(method, toy_resume):
    changes = {**START, "method__warmup": 4, "method__rotation_steps": 4}
    if method == "aggmatch":
        changes |= {"method__alignment": True, "method__alignment_steps": 3, "method__confidence": "product"}
    expected, got = toy_resume(method, **changes)
    assert all(torch.equal(tensor, got.tensors[key]) for key, tensor in expected.tensors.items())


@pytest.mark.parametrize("method", STARTING)
def test_without_start_settings_the_state_has_no_further_buffers(method, toy_state):
    state = toy_state(method)
    unused = "start" if method == "fixmatch_da" else ("start", "align")
    assert not [key for key in state.method.state_dict() if key.startswith(unused)]
    assert not state.online.head.state_dict()
