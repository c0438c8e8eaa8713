import json
import math
from pathlib import Path

import pytest
import torch
from tests.folders import write_folder
from tests.methods.steps import next_batch
from torch import Tensor

import aggmatch
from aggmatch.config import Layer
from aggmatch.data import SOURCES, Images
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.inference.model import TrainedModel
from aggmatch.methods import Batch, Views
from aggmatch.methods.paws import PAWS, Config, soft_neighbors
from aggmatch.models import Network
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import resolve

CONFIG = Config(
    support_views=2,
    small_crops=2,
    temperature=0.2,
    sharpening=0.5,
    label_smoothing=0.15,
    least_target=0.2,
    entropy_weight=0.7,
)


def embeddings(batch: Batch, network: Network) -> list[Tensor]:
    """Support, then every view: those of full size go through the network together, the small ones after them."""
    groups = [(*batch.labeled, *batch.unlabeled[:2]), batch.unlabeled[2:]]
    embedded = torch.cat([network.head(network(torch.cat(images)).feature) for images in groups if images])
    support, count = len(batch.labels) * len(batch.labeled), len(batch.unlabeled_index)
    return list(embedded.split([support, *[count] * len(batch.unlabeled)]))


def neighbors(query: Tensor, support: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """One query, one term at a time."""
    weights = [torch.exp((query @ other) / (query.norm() * other.norm()) / temperature) for other in support]
    return sum(weight * label for weight, label in zip(weights, labels, strict=True)) / sum(weights)


def sharpened(probs: Tensor, temperature: float) -> Tensor:
    powers = probs ** (1 / temperature)
    return powers / powers.sum()


def expected_loss(config: Config, classes: int, batch: Batch, embedded: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Cross-entropy and entropy of the mean prediction, image by image and view by view."""
    support, *views = embedded
    labels = torch.full((len(support), classes), config.label_smoothing / classes, dtype=torch.float64)
    for number, label in enumerate(batch.labels.tolist() * config.support_views):
        labels[number, label] += 1 - config.label_smoothing
    count = len(batch.unlabeled_index)
    cost, mean = torch.zeros((), dtype=torch.float64), torch.zeros(classes, dtype=torch.float64)
    for image in range(count):
        probs = [neighbors(view[image], support, labels, config.temperature) for view in views]
        sharp = [sharpened(each, config.sharpening) for each in probs]
        for number, own in enumerate(probs):
            target = (sharp[0] + sharp[1]) / 2 if number > 1 else sharp[1 - number]
            for y, share in enumerate(target.tolist()):  # plain numbers, so without a gradient
                if share >= config.least_target:
                    cost = cost - share * own[y].log()
        mean = mean + sum(sharp)
    mean = mean / (count * len(views))
    return cost / (count * len(views)), -(mean * mean.log()).sum()


def trained(toy_state, config):
    """A state of a few steps, a method of the given settings, and a batch."""
    changes = {"method__small_crops": config.small_crops, "method__support_views": config.support_views}
    state = toy_state("paws", **changes)
    for _ in range(3):
        state.step()
    return state, PAWS(config, state.method.problem), next_batch(state)


@pytest.mark.parametrize("small_crops", [0, 2])
def test_the_loss_and_its_gradient_equal_the_definition(toy_state, small_crops):
    config = Config(**CONFIG.to_dict() | {"small_crops": small_crops})
    state, method, batch = trained(toy_state, config)
    leaves = [each.detach().double().requires_grad_() for each in embeddings(batch, state.online)]
    cross_entropy, mean_entropy = expected_loss(config, 3, batch, leaves)
    loss = cross_entropy - 0.7 * mean_entropy
    loss.backward()

    outputs: list[Tensor] = []

    def spy(module, inputs, output):
        output.retain_grad()
        outputs.append(output)

    state.online.head.register_forward_hook(spy)
    result = method.step(batch, state.online, state.average)
    result.loss.backward()
    assert result.parts["loss_unlabeled"].item() == pytest.approx(cross_entropy.item(), rel=1e-4)
    assert result.parts["mean_entropy"].item() == pytest.approx(mean_entropy.item(), rel=1e-4)
    assert result.loss.item() == pytest.approx(loss.item(), rel=1e-4)
    # Equal gradients of support and views show that targets, and nothing else, are constants.
    got, expected = (
        torch.cat([each.grad for each in tensors if each.grad is not None]) for tensors in (outputs, leaves)
    )
    support = len(batch.labels) * config.support_views
    assert expected[:support].abs().sum() > 0
    assert expected[support:].abs().sum() > 0
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4 * expected.abs().max().item())


def test_the_cross_entropy_alone_trains_the_network(toy_state):
    state, method, batch = trained(toy_state, Config(small_crops=1, entropy_weight=0.0))
    result = method.step(batch, state.online, state.average)
    assert result.loss.item() == pytest.approx(result.parts["loss_unlabeled"].item())
    result.loss.backward()
    for part in (state.online.backbone, state.online.head):
        assert all(parameter.grad.abs().sum() > 0 for parameter in part.parameters() if parameter.ndim > 1)


def test_the_entropy_pulls_the_mean_prediction_towards_all_classes(toy_state):
    state, method, batch = trained(toy_state, CONFIG)
    weight = state.online.head.layers[-1].weight
    both, cross_entropy = (
        PAWS(Config(**CONFIG.to_dict() | {"entropy_weight": share}), method.problem) for share in (1.0, 0.0)
    )
    before = both.step(batch, state.online, state.average)
    (slope,) = torch.autograd.grad(before.loss, weight)
    (other,) = torch.autograd.grad(cross_entropy.step(batch, state.online, state.average).loss, weight)
    with torch.no_grad():
        weight -= 0.1 * (slope - other)
    after = both.step(batch, state.online, state.average)
    assert before.parts["mean_entropy"] < after.parts["mean_entropy"] <= math.log(3)


@pytest.mark.parametrize(("least", "low", "high"), [(0.0, 0.1, math.inf), (1.0, 0.0, 0.0)])
def test_target_probabilities_below_the_least_count_as_zero(toy_state, least, low, high):
    state, method, batch = trained(toy_state, Config(**CONFIG.to_dict() | {"least_target": least}))
    cost = method.step(batch, state.online, state.average).parts["loss_unlabeled"].item()
    assert low <= cost <= high


def test_hard_labels_and_a_cold_temperature_leave_loss_and_gradients_finite(toy_state):
    config = Config(**CONFIG.to_dict() | {"label_smoothing": 0.0, "temperature": 1e-3, "sharpening": 0.05})
    state, method, batch = trained(toy_state, config)
    loss = method.step(batch, state.online, state.average).loss
    loss.backward()
    assert torch.isfinite(loss)
    assert all(parameter.grad.isfinite().all() for parameter in state.online.head.parameters())


def test_the_pseudo_label_is_the_mean_of_both_large_views(toy_state):
    state, method, batch = trained(toy_state, CONFIG)
    pseudo = method.step(batch, state.online, state.average).pseudo
    assert pseudo is not None
    support, first, second, *_ = (each.detach().double() for each in embeddings(batch, state.online))
    labels = 0.85 * torch.eye(3, dtype=torch.float64)[batch.labels].repeat(2, 1) + 0.05
    for image, got in enumerate(pseudo.target.tolist()):
        both = [sharpened(neighbors(view[image], support, labels, 0.2), 0.5) for view in (first, second)]
        assert got == int((both[0] + both[1]).argmax())
    assert (pseudo.weight == 1).all()


def test_small_crops_do_not_update_the_running_statistics(toy_state):
    state, method, batch = trained(toy_state, CONFIG)
    other, _, _ = trained(toy_state, CONFIG)
    method.step(batch, state.online, state.average)
    other.online.head(other.online(torch.cat([*batch.labeled, *batch.unlabeled[:2]])).feature)
    statistics = [
        {name: buffer for name, buffer in network.named_buffers() if name.endswith(("running_mean", "running_var"))}
        for network in (state.online, other.online)
    ]
    assert statistics[0]
    assert all(torch.equal(buffer, statistics[1][name]) for name, buffer in statistics[0].items())


def test_the_numbers_of_views_follow_the_settings(toy_state):
    assert toy_state("paws", method__support_views=3, method__small_crops=0).method.views == Views(
        labeled=("large_crop",) * 3, unlabeled=("large_crop",) * 2
    )
    assert toy_state("paws", method__support_views=1, method__small_crops=6).method.views == Views(
        labeled=("large_crop",), unlabeled=("large_crop",) * 2 + ("small_crop",) * 6
    )


# Batches -----------------------------------------------------------------------------------------------------------


def test_every_batch_has_equally_many_images_of_each_class(toy_state):
    state = toy_state("paws", train__batch=9)
    for _ in range(5):
        labels = next_batch(state).labels
        assert labels.bincount(minlength=3).tolist() == [3, 3, 3]


def test_a_batch_that_cannot_be_balanced_raises(toy_state):
    with pytest.raises(AggMatchError, match=r"train\.batch"):
        toy_state("paws", train__batch=8, method__support=None)


@pytest.mark.parametrize(
    ("counts", "batch", "support", "per_class"),
    [
        ([400] * 10, 256, 64, 64),
        ([25] * 10, 256, 64, 25),
        ([4] * 10, 256, 64, 25),  # the four images repeat
        ([4] * 100, 256, 64, 4),
        ([400] * 9 + [30], 256, 64, 30),  # batches are balanced
        ([4] * 10, 1000, 64, 64),
    ],
)
def test_the_support_has_64_images_of_each_class_where_labels_allow(counts, batch, support, per_class):
    assert PAWS.labeled_batch(Config(support=support), batch, counts) == per_class * len(counts)


def test_labelled_and_unlabelled_batches_have_sizes_of_their_own(toy_state):
    state = toy_state("paws", train__batch=9, train__unlabeled_ratio=1, method__support=2)
    batch = next_batch(state)
    assert (len(batch.labels), len(batch.unlabeled_index)) == (6, 9)
    assert state.images_per_step == 6 * 2 + 9 * len(batch.unlabeled)


def test_a_run_of_an_older_version_keeps_its_settings(tmp_path):
    path = write_folder(tmp_path / "run", method="paws")
    config = json.loads((path / "config.json").read_text())
    for key in ("final", "warmup", "warmup_from", "nesterov"):
        del config["optim"][key]
    del config["method"]["support"], config["views"]["crops"]["hue"], config["digest"]
    (path / "config.json").write_text(json.dumps(config | {"train": config["train"] | {"batch": 200}}))
    settings = RunFolder(path).settings()
    assert (settings.optim.final, settings.optim.warmup, settings.optim.nesterov) == (None, 0, True)
    assert settings.views.crops.hue == 0
    assert isinstance(settings.method, Config)
    assert PAWS.labeled_batch(settings.method, settings.train.batch, [400] * 10) == 200


@pytest.mark.parametrize("data", SOURCES.names())
def test_the_default_batch_suits_every_data_set(data):
    settings = resolve([Layer("the test", {"data.name": data, "method.name": "paws"})])
    counts = [4] * len(SOURCES.load(data).classes)
    assert isinstance(settings.method, Config)
    assert PAWS.labeled_batch(settings.method, settings.train.batch, counts) % len(counts) == 0
    assert settings.optim.optimizer == "lars"


# Prediction --------------------------------------------------------------------------------------------------------


def test_soft_neighbours_of_a_hand_computed_case():
    # Cosines 1, 0 and −1, whatever the lengths; at temperature 1/log 2 the weights are 2, 1 and 1/2.
    support = torch.tensor([[3.0, 0.0], [0.0, 0.1], [-5.0, 0.0]])
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
    probs = soft_neighbors(torch.tensor([[7.0, 0.0]]), support, labels, 1 / math.log(2))
    assert probs[0].tolist() == pytest.approx([2.25 / 3.5, 1.25 / 3.5])


@pytest.fixture
def prepared(toy_state, toy_data, toy_split):
    """A briefly trained state, and the labelled images."""
    state = toy_state("paws")
    for _ in range(5):
        state.step()
    return state, Images(toy_data.train.pixels[toy_split.labeled], toy_split.labels)


def test_predictions_come_from_all_labelled_images(prepared, toy_data):
    state, labeled = prepared
    test = Images(toy_data.test.pixels[:7], toy_data.test.labels[:7])
    probs = evaluate(state.method, state.online, test, labeled).probs
    state.online.eval()
    with torch.no_grad():
        support, query = (state.online.head(state.online(images.pixels).feature).double() for images in (labeled, test))
    labels = torch.eye(3, dtype=torch.float64)[labeled.labels]
    expected = torch.stack([neighbors(each, support, labels, 0.1) for each in query])
    torch.testing.assert_close(probs.double(), expected, rtol=1e-3, atol=1e-6)


def test_the_given_labels_decide_the_prediction(prepared, toy_data):
    state, labeled = prepared
    right = evaluate(state.method, state.online, toy_data.test, labeled).probs
    turned = evaluate(state.method, state.online, toy_data.test, Images(labeled.pixels, (labeled.labels + 1) % 3)).probs
    torch.testing.assert_close(turned, right.roll(1, dims=1))


def test_the_classifier_does_not_affect_the_prediction(prepared, toy_data):
    state, labeled = prepared
    before = evaluate(state.method, state.online, toy_data.test, labeled).probs
    torch.nn.init.normal_(state.online.classifier.weight)
    assert torch.equal(evaluate(state.method, state.online, toy_data.test, labeled).probs, before)


def test_all_labelled_images_are_stored_if_there_are_more_than_one_batch(prepared, monkeypatch):
    state, labeled = prepared
    state.online.eval()
    state.method.prepare(state.online, labeled.pixels, labeled.labels)
    whole = state.method.support.clone()
    assert torch.equal(state.method.support_labels, labeled.labels)
    assert not whole.requires_grad
    monkeypatch.setattr("aggmatch.methods.paws.images_at_once", lambda side: 4)
    state.method.support.zero_()
    state.method.prepare(state.online, labeled.pixels, labeled.labels)
    torch.testing.assert_close(state.method.support, whole)


def test_a_saved_model_predicts_the_same(tmp_path: Path):
    values = {
        "data.name": "digits",
        "data.labels": 20,
        "method.name": "paws",
        "method.small_crops": 1,
        "model.name": "small-4",
        "train.steps": 12,
        "train.batch": 20,
        "train.log_every": 4,
        "train.evaluate_every": 6,
        "runtime.device": "cpu",
    }
    run = aggmatch.start(resolve([Layer("the test", values)]), tmp_path / "run")
    records = list(run.train())
    assert all(
        {"loss_unlabeled", "mean_entropy", "confidence", "pseudo_precision"} <= set(each) for each in records[:1]
    )
    model = TrainedModel.load(tmp_path / "run")
    data = model.data()
    loaded = model.evaluate(data)
    trained = evaluate(run.state.method, run.state.average, data.test, run.labeled)
    assert torch.equal(loaded.probs, trained.probs)
    assert loaded.accuracy == json.loads(run.folder.summary.read_text())["accuracy"]
    assert len(loaded.probs.argmax(1).unique()) > 1
