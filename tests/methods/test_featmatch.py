import copy
from dataclasses import replace

import pytest
import torch
from tests.methods.steps import next_batch
from tests.models.test_heads import linear, refined_by_hand

import aggmatch
from aggmatch.config import Layer
from aggmatch.evaluation import evaluate
from aggmatch.inference.model import TrainedModel
from aggmatch.methods import Problem, Views
from aggmatch.methods.featmatch import Config, FeatMatch, Records
from aggmatch.settings import resolve
from aggmatch.validate import InvalidValue

PROBLEM = Problem(classes=2, features=3, labels=4, images=20)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def run(state, steps):
    for _ in range(steps):
        state.step()
    return state


def at(state, progress):
    """The state's next batch, as if that share of the training were done."""
    return replace(next_batch(state), progress=torch.tensor(progress))


def recorded(owner, name):
    """A list that gets everything which a method of the owner returns from now on."""
    results = []
    function = getattr(owner, name)

    def note(*args, **options):
        results.append(function(*args, **options))
        return results[-1]

    setattr(owner, name, note)
    return results


# The loss --------------------------------------------------------------------------------------------------------


def probabilities(logits):
    return torch.tensor(logits, dtype=torch.float64).softmax(-1)


def loss_by_hand(state, batch, partner, share):
    """The loss, image by image, from the features that the network gives."""
    config, online, method = state.method.config, copy.deepcopy(state.online).train(), state.method
    prototypes = method.prototype[method.filled].tolist()

    def refine(feature):
        return refined_by_hand(online.head, feature, prototypes) if prototypes else feature

    weak = online(torch.cat([batch.labeled[0], batch.unlabeled[0]])).feature[len(batch.labels) :].tolist()
    images, targets = [], []
    for view in batch.labeled:
        images += list(view.double())
        targets += [torch.eye(3, dtype=torch.float64)[label] for label in batch.labels]
    for view in batch.unlabeled:
        images += list(view.double())
        for feature in weak:
            powered = probabilities(linear(online.classifier, refine(feature))) ** (1 / config.sharpening)
            targets.append(powered / powered.sum())
    mixed = [share * x + (1 - share) * images[p] for x, p in zip(images, partner, strict=True)]
    features = online(torch.stack(mixed).float()).feature.tolist()

    labeled = len(batch.labels) * len(batch.labeled)
    sums = {"labeled": 0.0, "refined": 0.0, "raw": 0.0}
    for i, feature in enumerate(features):
        target = share * targets[i] + (1 - share) * targets[partner[i]]
        refined = probabilities(linear(online.classifier, refine(feature)))
        raw = probabilities(linear(online.classifier, feature))
        sums["labeled" if i < labeled else "refined"] -= float(target @ refined.log())
        sums["raw"] -= float(target @ raw.log()) if i >= labeled and prototypes else 0.0
    ramp = min(1.0, float(batch.progress) / config.ramp)
    unlabeled = config.refined_weight * sums["refined"] + config.raw_weight * sums["raw"]
    return sums["labeled"] / labeled + ramp * unlabeled / (len(features) - labeled)


@pytest.mark.parametrize(("steps", "prototypes"), [(1, False), (7, True)])
def test_the_loss_equals_the_definition_before_and_after_the_first_clustering(toy_state, steps, prototypes):
    options = {"method__strong_views": 2, "method__dropout": 0.0, "method__alpha": 0.75, "method__raw_weight": 1.5}
    state = run(toy_state("featmatch", **options), steps)
    assert bool(state.method.ready) == prototypes
    batch = at(state, 0.1)
    draws = recorded(state.method, "draw")
    result = state.method.step(batch, state.online, state.average)
    partner, share = draws[0]
    expected = loss_by_hand(state, batch, partner.tolist(), share[0].item())
    assert result.loss.item() == pytest.approx(expected, rel=1e-4)
    assert result.parts["loss_unlabeled"] > 0.1


def test_the_unlabelled_losses_are_off_at_the_start_and_whole_after_the_ramp(toy_state):
    for progress, ramp in ((0.0, 0.0), (0.2, 0.5), (0.4, 1.0), (0.9, 1.0)):
        state = run(toy_state("featmatch"), 3)
        result = state.method.step(at(state, progress), state.online, state.average)
        added = result.loss - result.parts["loss_labeled"]
        assert added.item() == pytest.approx(ramp * result.parts["loss_unlabeled"].item(), abs=1e-5)
        whole = 0.5 * result.parts["loss_refined"] + 2 * result.parts["loss_raw"]
        assert result.parts["loss_unlabeled"].item() == pytest.approx(whole.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("steps", "weights", "acts"),
    [(4, (0.5, 0.0), True), (4, (0.0, 2.0), True), (1, (0.5, 0.0), True), (1, (0.0, 2.0), False)],
)
def test_unlabelled_losses_act_through_mixed_views_and_the_raw_one_after_the_first_clustering(
    toy_state, steps, weights, acts
):
    options = {"method__refined_weight": weights[0], "method__raw_weight": weights[1]}
    state = run(toy_state("featmatch", **options), steps)
    batch = at(state, 1.0)
    outputs = recorded(state.online, "forward")
    result = state.method.step(batch, state.online, state.average)
    unmixed, mixed = outputs
    (gradient,) = torch.autograd.grad(result.loss, mixed.feature)
    labeled, unlabeled = gradient.split([2 * len(batch.labels), 2 * len(batch.unlabeled_index)])
    assert labeled.abs().sum(1).min() > 0
    assert (unlabeled.abs().sum(1) > 0).tolist() == [acts] * len(unlabeled)
    assert not unmixed.logits.requires_grad  # it gives the targets


def test_the_attention_learns_after_the_first_clustering(toy_state):
    for steps, learns in ((1, False), (3, True)):
        state = run(toy_state("featmatch"), steps)
        state.method.step(at(state, 0.0), state.online, state.average).loss.backward()
        gradients = [parameter.grad.abs().sum().item() for parameter in state.online.head.parameters()]
        assert [gradient > 0 for gradient in gradients] == [learns] * len(gradients)


def test_a_batch_is_mixed_by_a_permutation_with_one_larger_share():
    method = FeatMatch(Config(), PROBLEM)
    shares = []
    for seed in range(200):
        partner, share = method.draw(50, generator(seed))
        assert partner.sort().values.tolist() == list(range(50))
        assert share.shape == (50,)
        assert len(set(share.tolist())) == 1
        shares.append(share[0].item())
    assert min(shares) >= 0.5
    assert max(shares) - min(shares) > 0.4


def test_pseudo_labels_are_the_refined_predictions_of_weak_views(toy_state):
    state = run(toy_state("featmatch", method__dropout=0.0), 5)
    batch = at(state, 0.5)
    online = copy.deepcopy(state.online)
    feature = online(torch.cat([batch.labeled[0], batch.unlabeled[0]])).feature[len(batch.labels) :]
    probs = online.classifier(state.method.refine(online, feature)).softmax(-1)
    result = state.method.step(batch, state.online, state.average)
    assert result.pseudo is not None
    assert torch.equal(result.pseudo.target, probs.argmax(-1))
    assert (result.pseudo.weight == 1).all()
    assert result.parts["confidence"].item() == pytest.approx(probs.max(-1).values.mean().item())


def test_the_number_of_strong_views_is_a_setting():
    expected = ("weak", "strong", "strong", "strong")
    assert FeatMatch(Config(strong_views=3), PROBLEM).views == Views(labeled=expected, unlabeled=expected)
    assert len(FeatMatch(Config(), PROBLEM).views.unlabeled) == 9


def test_dropping_every_attention_weight_raises():
    with pytest.raises(InvalidValue, match="dropout"):
        Config(dropout=1.0)


# Recorded features -----------------------------------------------------------------------------------------------


def test_a_step_records_the_features_of_unlabelled_weak_views(toy_state):
    state = toy_state("featmatch", method__labeled_prototypes=3)
    batch = at(state, 0.5)
    _, weak = copy.deepcopy(state.online)(torch.cat([batch.labeled[0], batch.unlabeled[0]])).split([6, 18])
    state.method.step(batch, state.online, state.average)
    records = state.method.unlabeled
    torch.testing.assert_close(records.feature[:18], weak.feature)
    torch.testing.assert_close(records.confidence[:18], weak.logits.softmax(-1).max(-1).values)
    assert records.label.tolist() == weak.logits.argmax(-1).tolist() + [-1] * 46
    assert not records.feature.requires_grad


def test_new_records_replace_the_oldest():
    records = Records(5, 1)
    for start in (0, 3, 6):
        value = torch.arange(start, start + 3)
        records.write(value[:, None].float(), value, value / 10)
    assert sorted(records.label.tolist()) == [4, 5, 6, 7, 8]
    assert records.feature.flatten().tolist() == records.label.tolist()
    torch.testing.assert_close(records.confidence, records.label / 10)
    records.write(torch.arange(20.0)[:, None], torch.arange(20), torch.ones(20))
    assert sorted(records.label.tolist()) == [15, 16, 17, 18, 19]
    records.clear()
    assert records.label.tolist() == [-1] * 5


def test_features_of_labelled_images_are_of_plain_images_in_evaluation_mode(
    toy_state, toy_data, toy_split, monkeypatch
):
    state = run(toy_state("featmatch"), 4)
    network = copy.deepcopy(state.online).eval()
    state.online.train()
    statistics = [buffer.clone() for buffer in state.online.buffers()]
    monkeypatch.setattr("aggmatch.methods.featmatch.images_at_once", lambda side: 4)
    with torch.no_grad():
        expected = network(toy_data.train.pixels[toy_split.labeled]).feature
        torch.testing.assert_close(state.method.labeled_features(), expected, atol=1e-5, rtol=1e-4)
    assert state.online.training
    assert all(torch.equal(a, b) for a, b in zip(state.online.buffers(), statistics, strict=True))


def test_labelled_records_of_an_older_version_are_dropped():
    method = FeatMatch(Config(), PROBLEM)
    older = method.state_dict() | {"labeled.feature": torch.zeros(8, 3), "labeled.label": torch.zeros(8)}
    older["filled"] = torch.ones_like(older["filled"])
    method.load_state_dict(older)
    assert method.filled.all()


# Prototypes ------------------------------------------------------------------------------------------------------


def test_prototypes_are_updated_in_place_every_refresh_after_the_warmup(toy_state):
    state = toy_state("featmatch", method__warmup=5, method__refresh_every=2)
    method = state.method
    places = [method.prototype.data_ptr(), method.filled.data_ptr()]
    changed, recorded = [], []
    for step in range(10):
        before = method.prototype.clone()
        state.step()
        if not torch.equal(method.prototype, before):
            changed.append(step)
        recorded.append((method.unlabeled.label >= 0).sum().item())
    assert changed == [6, 8]
    assert recorded == [18, 36] * 5
    assert [method.prototype.data_ptr(), method.filled.data_ptr()] == places
    assert method.status()["prototypes"] == method.filled.sum()


def test_without_a_warmup_labelled_images_give_the_first_prototypes(toy_state):
    state = toy_state("featmatch", method__warmup=0, method__refresh_every=3)
    method = state.method
    method.refresh(0)
    assert method.filled.view(3, 4).tolist() == [[True, True, True, False]] * 3, "the mean and two images"
    for row, label in zip(method.prototype.view(3, 4, -1), range(3), strict=True):
        with torch.no_grad():
            torch.testing.assert_close(row[0], method.labeled_features()[method.labels == label].mean(0))


def test_prototypes_of_a_class_are_means_of_its_records(toy_state):
    state = run(toy_state("featmatch", method__warmup=16, method__refresh_every=16), 16)
    method = state.method
    unlabeled = copy.deepcopy(method.unlabeled)
    with torch.no_grad():
        plain = method.labeled_features()
    method.refresh(16)
    assert method.filled.all()
    accepted = method.confident(torch.stack([unlabeled.label == y for y in range(3)]), unlabeled.confidence)
    # Per class: mean of labelled, a single cluster and so the same mean again, then both of the unlabelled.
    rows = method.prototype.view(3, 2, 2, -1)
    for y in range(3):
        of_labels = plain[method.labels == y]
        of_predictions = unlabeled.feature[(unlabeled.label == y) & accepted]
        assert len(of_labels) == 2
        assert len(of_predictions) > 4
        for kind, features in enumerate((of_labels, of_predictions)):
            mean = torch.stack(list(features)).double().sum(0) / len(features)
            torch.testing.assert_close(rows[y, kind].double(), mean.expand(2, -1), atol=1e-5, rtol=1e-4)


def clustered(config, labels, unlabeled):
    """A method that has computed prototypes of random labelled features and given numbers of unlabelled ones."""
    method = FeatMatch(config, PROBLEM)
    method.labels = torch.tensor(labels)
    classes = torch.tensor([y for y, count in enumerate(unlabeled) for _ in range(count)])
    feature = torch.randn(len(classes), 3, generator=generator(1))
    method.unlabeled.write(feature, classes, torch.full((len(classes),), 0.9))
    method.cluster(torch.randn(len(labels), 3, generator=generator()), generator())
    return method


def test_a_class_with_few_labels_has_more_prototypes_of_unlabelled_images():
    config = Config(labeled_prototypes=4, unlabeled_prototypes=4, recorded=100)
    method = clustered(config, [0, 0, 1, 1, 1, 1, 1, 1, 1], [40, 40])
    assert method.filled.all(), "8 of each class"
    first, second = method.prototype.view(2, 8, 3)
    feature = torch.randn(9, 3, generator=generator())
    torch.testing.assert_close(first[0], feature[:2].mean(0))
    assert {tuple(row) for row in first[1:3].tolist()} == {tuple(row) for row in feature[:2].tolist()}
    recorded = method.unlabeled.feature
    torch.testing.assert_close(first[3], recorded[:40].mean(0))
    torch.testing.assert_close(second[4], recorded[40:80].mean(0))


def test_clustering_depends_only_on_records_and_step(toy_state):
    states = [run(toy_state("featmatch", method__labeled_prototypes=4), 5) for _ in range(2)]
    for state in states:
        torch.rand(3)
        state.method.refresh(6)
    assert torch.equal(states[0].method.prototype, states[1].method.prototype)


@pytest.mark.parametrize(
    ("threshold", "halvings", "accepted"),
    [
        (0.5, 2, [1, 1, 1, 0, 1, 1, 1, 0]),  # 0.25 is the first that leaves either class three
        (0.5, 0, [0] * 8),
        (0.2, 0, [1, 1, 1, 0, 1, 1, 1, 0]),
        (0.9, 1, [0] * 8),  # 0.9 and 0.45
        (0.5, 4, [1, 1, 1, 0, 1, 1, 1, 0]),  # the first, though 0.0625 leaves more
        (0.3, 0, [0] * 8),  # one of 0.3 is not above 0.3
        (0.04, 0, [1] * 8),
    ],
)
def test_the_threshold_is_halved_until_every_class_has_more_features_than_prototypes(threshold, halvings, accepted):
    config = Config(labeled_prototypes=1, unlabeled_prototypes=1, threshold=threshold, halvings=halvings)
    method = FeatMatch(config, PROBLEM)
    confidence = torch.tensor([0.9, 0.8, 0.6, 0.1, 0.9, 0.4, 0.3, 0.1])
    member = torch.arange(8)[None] // 4 == torch.arange(2)[:, None]
    assert method.confident(member, confidence).int().tolist() == accepted


def test_without_confident_features_all_prototypes_are_of_labelled_images():
    config = Config(labeled_prototypes=2, unlabeled_prototypes=4, recorded=100)
    method = clustered(config, [0, 0, 0, 1, 1, 1, 1, 1, 1, 1], [4, 4])  # no more than 6 of a class
    assert method.filled.view(2, 6).sum(1).tolist() == [4, 6], "the mean and three images; the mean and five clusters"
    labeled = torch.randn(10, 3, generator=generator())
    torch.testing.assert_close(method.prototype.view(2, 6, 3)[1, 0], labeled[3:].mean(0))


# Prediction ------------------------------------------------------------------------------------------------------


def test_predictions_are_those_of_refined_features_once_there_are_prototypes(toy_state, toy_data):
    images = toy_data.test.pixels[:10]
    for steps in (1, 5):
        state = run(toy_state("featmatch"), steps)
        network = state.average.eval()
        plain = network(images)
        predicted = state.method.predict(network, images)
        assert torch.equal(predicted, state.method.predict(network, images))
        if steps == 1:
            assert torch.equal(predicted, plain.logits.softmax(-1))
            continue
        prototypes = state.method.prototype[state.method.filled].tolist()
        for row, feature in zip(predicted, plain.feature.tolist(), strict=True):
            refined = refined_by_hand(network.head, feature, prototypes)
            torch.testing.assert_close(
                row.double(), probabilities(linear(network.classifier, refined)), atol=1e-5, rtol=1e-4
            )
        assert not torch.allclose(predicted, plain.logits.softmax(-1))


def test_a_saved_model_predicts_the_same(tmp_path):
    values = {
        "data.name": "digits",
        "method.name": "featmatch",
        "method.strong_views": 1,
        "method.warmup": 6,
        "method.refresh_every": 3,
        "method.recorded": 100,
        "model.name": "small-4",
        "train.steps": 10,
        "train.batch": 10,
    }
    started = aggmatch.start(resolve([Layer("the test", values)]), tmp_path / "run")
    for _ in started.train():
        pass
    expected = evaluate(started.state.method, started.state.evaluated, started.data.test)
    model = TrainedModel.load(tmp_path / "run")
    assert model.method.ready
    assert torch.equal(model.evaluate(started.data).probs, expected.probs)
    model.method.get_buffer("filled").zero_()
    assert not torch.equal(model.evaluate(started.data).probs, expected.probs)
