import pytest
import torch
import torch.nn.functional as F
from tests.methods.steps import next_batch, step_result

from aggmatch.errors import AggMatchError
from aggmatch.methods import builtin_methods, load_method
from aggmatch.methods.start import StartingMethod
from aggmatch.methods.start.rotation import rotate_quarters
from aggmatch.recipes import NAMED

STARTING = [name for name in sorted(builtin_methods()) if issubclass(load_method(name), StartingMethod)]
START = {"method__labeled_views": "both", "method__rotation_weight": 0.5, "method__rotated": 8}


def test_fixmatch_and_its_relatives_have_the_same_start_as_aggmatch():
    relatives = {"fixmatch_da", "shrinkmatch", "flexmatch", "freematch", "softmatch"}
    assert set(STARTING) == {"aggmatch", "fixmatch", *relatives}
    assert set(STARTING) == set(NAMED["cold-start"]) == set(NAMED["neighbours"])


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
    batch = next_batch(state)
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
    thresholds = {"method__threshold": 0.0} if method.startswith(("fixmatch", "shrinkmatch")) else {}
    state = toy_state(method, method__warmup=2, **thresholds)
    differences, weights = [], []
    for step in range(4):
        state.method.refresh(step)
        result = step_result(state)
        differences.append((result.loss - result.parts["loss_labeled"]).item())
        weights.append(result.pseudo.weight.sum().item())
    assert differences[:2] == weights[:2] == [0, 0]
    assert all(value > 0 for value in differences[2:] + weights[2:])


@pytest.mark.parametrize("method", STARTING)
def test_the_rotation_task_ends_after_its_steps(method, toy_state):
    state = toy_state(method, **START, method__rotation_steps=2)
    head = next(state.online.head.parameters())
    turned, learned = [], []
    for _ in range(4):
        before = head.detach().clone()
        state.step()
        turned.append(state.meters.read()["loss_rotation"])
        learned.append(not torch.equal(head, before))
    assert [loss > 0 for loss in turned] == learned == [True, True, False, False]


@pytest.fixture
def begun(monkeypatch):
    """Makes a list of the steps at which a trainer begins a stage."""

    def watch(state):
        steps, begin = [], state.begin_stage

        def note_and_begin():
            steps.append(state.steps_done)
            begin()

        monkeypatch.setattr(state, "begin_stage", note_and_begin)
        return steps

    return watch


def test_the_step_is_captured_anew_when_the_rotation_task_ends(toy_state, begun):
    state = toy_state("fixmatch", **START, method__rotation_steps=2)
    steps = begun(state)
    for _ in range(4):
        state.step()
    assert steps == [2]


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
    aligned = method in ("fixmatch_da", "shrinkmatch")
    unused = "start" if aligned else ("start", "align")
    assert not [key for key in state.method.state_dict() if key.startswith(unused)]
    assert not [key for key in state.online.head.state_dict() if not key.startswith("second")]


# Phases before the method ---------------------------------------------------------------------------------------------

PHASES = {
    "method__contrast_steps": 2,
    "method__propagation_steps": 3,
    "method__propagations": 3,
    "method__neighbours": 5,
}


@pytest.mark.parametrize("method", STARTING)
def test_contrast_comes_first_then_propagation_then_the_method(method, toy_state):
    plain, state = toy_state(method), toy_state(method, **PHASES)
    plain.step()
    own = list(plain.meters.read())
    seen = []
    for _ in range(8):
        state.step()
        seen.append((state.method.views.unlabeled, state.method.average_statistics, list(state.meters.read())))
    contrast, propagation, itself = seen[0], seen[2], seen[5]
    assert seen == [contrast] * 2 + [propagation] * 3 + [itself] * 3
    assert contrast[:2] == (("large_crop", "large_crop"), "copied")
    assert contrast[2] == ["loss_labeled", "loss_contrast", "loss"]
    assert propagation[:2] == (("strong",), "copied")
    assert propagation[2][:3] == ["loss_labeled", "loss_unlabeled", "loss"]
    assert itself == (plain.method.views.unlabeled, plain.method.average_statistics, own)


@pytest.mark.parametrize(("contrast", "propagation"), [(4, 1), (2, 3), (1, 1), (0, 4), (4, 0)])
@pytest.mark.parametrize("method", STARTING)
def test_a_restored_state_continues_its_phase(method, contrast, propagation, toy_resume):
    steps = {"method__contrast_steps": contrast, "method__propagation_steps": propagation}
    expected, got = toy_resume(method, **(PHASES | steps | {"method__propagations": 2}))
    assert expected.facts == got.facts
    assert all(torch.equal(tensor, got.tensors[key]) for key, tensor in expected.tensors.items())


def test_the_step_is_captured_anew_for_each_phase(toy_state, begun):
    state = toy_state("fixmatch", **PHASES)
    steps = begun(state)
    for _ in range(8):
        state.step()
    assert steps == [2, 5]


def test_the_warmup_and_the_rotation_task_count_from_the_first_step_of_the_method(toy_state):
    state = toy_state("freematch", method__propagation_steps=3, method__neighbours=5, method__warmup=2, **START)
    weights, turned = [], []
    for _ in range(7):
        state.step()
        metrics = state.meters.read()
        weights.append(metrics["pseudo_coverage"] > 0)
        turned.append(metrics.get("loss_rotation", 0) > 0)
    assert weights == [True] * 3 + [False] * 2 + [True] * 2
    assert turned == [False] * 3 + [True] * 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method__contrast_steps": 5, "method__rotation_weight": 1.0}, "must be 0 with a contrast phase"),
        ({"method__contrast_steps": 20, "method__propagation_steps": 20}, "leave none of train.steps=40"),
        ({"method__propagated": [0.8, 0.3]}, "must be two shares above 0, the smaller first"),
        ({"method__propagated": [0.8]}, "must be two shares above 0, the smaller first"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message, toy_state):
    with pytest.raises(AggMatchError, match=message):
        toy_state("aggmatch", **changes)


@pytest.mark.parametrize("name", ["contrast_steps", "propagation_steps"])
def test_a_frozen_backbone_has_no_phases(name, toy_state):
    with pytest.raises(AggMatchError, match=f"method.{name}.* must be 0 with train.backbone=frozen"):
        toy_state("aggmatch", train__backbone="frozen", **{f"method__{name}": 5})
