"""Runs on cached features of a frozen backbone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.conftest import toy_settings

from aggmatch.data import DataSet, Images
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.inference.model import Snapshot, TrainedModel
from aggmatch.methods import METHODS
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import RunSettings
from aggmatch.training.begin import resume, start
from aggmatch.training.crossval import estimate_accuracy
from aggmatch.training.linear_start import store_before
from aggmatch.training.run import Run
from aggmatch.validate import InvalidValue

BACKBONE = f"{Path(__file__).with_name('frozen_backbone.py')}:Bands"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def settings(method: str = "aggmatch", **changes: object) -> RunSettings:
    return toy_settings(method, **{"train__backbone": "frozen", "model__name": BACKBONE, "views__cached": 2, **changes})


def complete(run: Run) -> Run:
    for _ in run.train():
        pass
    return run


@pytest.mark.parametrize("method", METHODS.names())
def test_every_method_learns_on_frozen_features(method: str, toy_data: DataSet, tmp_path: Path):
    run = complete(start(settings(method, train__steps=4), tmp_path / "run", data=toy_data))
    summary = run.folder.result()
    assert summary is not None
    assert set(summary["probes"]) == {"logistic regression", "LabelSpreading", "self-training"}
    model = TrainedModel.load(run.folder.path, allow=[BACKBONE])
    assert model.evaluate(toy_data).accuracy == pytest.approx(summary["accuracy"], abs=2)  # float16 in the cache


def test_the_classifier_learns_the_classes(toy_data: DataSet, tmp_path: Path):
    run = complete(start(settings("supervised", train__steps=200), tmp_path / "run", data=toy_data))
    assert run.folder.result()["accuracy"] > 90  # type: ignore[index]


def test_a_resumed_run_ends_with_the_same_weights(toy_data: DataSet, tmp_path: Path):
    whole = complete(start(settings(), tmp_path / "whole", data=toy_data))
    for _ in start(settings(), tmp_path / "halves", data=toy_data).train():
        if RunFolder(tmp_path / "halves").checkpoints.exists():
            break
    halves = complete(resume(tmp_path / "halves", data=toy_data, allow=[BACKBONE]))
    assert whole.folder.model.read_bytes() == halves.folder.model.read_bytes()


def test_a_full_disk_before_the_first_step_does_not_block_the_folder(
    toy_data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    with monkeypatch.context() as patch:

        def fail(path: Path, data: bytes) -> None:
            raise AggMatchError(f"Cannot write {path}: No space left on device.")

        patch.setattr("aggmatch.training.run.write_atomically", fail)
        with pytest.raises(AggMatchError, match=r"backbone\.safetensors"):
            start(settings(), tmp_path / "run", data=toy_data)
    assert not (tmp_path / "run").exists()
    start(settings(), tmp_path / "run", data=toy_data)


def test_the_backbone_is_stored_once_and_predicts_from_there(
    toy_data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    run = complete(start(settings(train__steps=4), tmp_path / "run", data=toy_data))
    folder = run.folder
    assert folder.backbone.exists()
    before = TrainedModel.load(folder.path, allow=[BACKBONE]).predict(toy_data.test.pixels)
    monkeypatch.setattr("aggmatch.models.pretrained.load_pretrained", None)  # nobody loads other weights
    assert torch.equal(TrainedModel.load(folder.path, allow=[BACKBONE]).predict(toy_data.test.pixels), before)
    snapshot = Snapshot.load(sorted(folder.snapshots.iterdir())[-1], run.settings)
    assert snapshot.average.frozen is not None
    folder.backbone.unlink()
    with pytest.raises(AggMatchError, match=r"backbone\.safetensors"):
        TrainedModel.load(folder.path, allow=[BACKBONE])


def test_strong_views_lose_features_and_weak_ones_do_not(toy_data: DataSet, tmp_path: Path):
    state = start(settings("fixmatch", views__feature_dropout=0.5), tmp_path / "run", data=toy_data).state
    inputs, index = state.inputs, torch.arange(90)
    weak, strong = inputs.views(("weak", "strong"), index, state.generator)
    mean = state.online.get_buffer("backbone.mean")
    assert (strong == mean).float().mean() == pytest.approx(0.5, abs=0.06)
    assert (weak == mean).float().mean() < 0.1


def test_rotated_images_cannot_be_learned_on_frozen_features():
    with pytest.raises(InvalidValue, match=r"method\.rotation_weight"):
        settings("fixmatch", method__rotation_weight=1.0)


def test_finetuning_starts_from_the_pretrained_weights(toy_data: DataSet, tmp_path: Path):
    run = start(settings("fixmatch", train__backbone="finetune"), tmp_path / "run", data=toy_data)
    assert run.state.online.frozen is None
    before = run.state.online.get_parameter("backbone.scale").clone()
    complete(run)
    assert not torch.equal(run.state.online.get_parameter("backbone.scale"), before)
    frozen = complete(start(settings("fixmatch", train__steps=4), tmp_path / "frozen", data=toy_data))
    probes = [(finished.folder.result() or {})["probes"] for finished in (run, frozen)]
    assert probes[0] == probes[1], "on features as they were before"
    assert not run.folder.backbone.exists()


def test_finetuning_keeps_the_statistics_that_came_with_the_weights(toy_data: DataSet, tmp_path: Path):
    changed = settings("fixmatch", train__backbone="finetune", train__batchnorm="fixed")
    run = start(changed, tmp_path / "run", data=toy_data)
    assert run.state.online.fixed_norm
    assert run.state.average.fixed_norm
    with pytest.raises(InvalidValue, match=r"train\.batchnorm"):
        settings("fixmatch", train__batchnorm="fixed")


def finetuned(**changes: object) -> RunSettings:
    return settings("fixmatch", **{"train__backbone": "finetune", "train__linear_start": True, **changes})


def test_finetuning_may_start_with_a_classifier_that_trained_itself(toy_data: DataSet, tmp_path: Path):
    state, again, cold = (
        start(finetuned(train__linear_start=linear), tmp_path / str(number), data=toy_data).state
        for number, linear in enumerate((True, True, False))
    )
    accuracies = [evaluate(each.method, each.average, toy_data.test).accuracy for each in (state, cold)]
    assert accuracies[0] > 90 > accuracies[1]
    for network in (state.average, again.online):
        assert all(
            torch.equal(mine, other)
            for mine, other in zip(network.parameters(), state.online.parameters(), strict=True)
        )


def test_a_resumed_run_does_not_start_linearly_again(
    toy_data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole = complete(start(finetuned(), tmp_path / "whole", data=toy_data))
    for _ in start(finetuned(), tmp_path / "halves", data=toy_data).train():
        if RunFolder(tmp_path / "halves").checkpoints.exists():
            break
    monkeypatch.setattr("aggmatch.training.begin.start_linearly", None)
    halves = complete(resume(tmp_path / "halves", data=toy_data, allow=[BACKBONE]))
    assert whole.folder.model.read_bytes() == halves.folder.model.read_bytes()
    later = start(finetuned(train__start_from=str(whole.folder.path)), tmp_path / "later", data=toy_data)
    before = whole.state.average.classifier.weight
    assert torch.equal(later.state.average.classifier.weight, before), "an earlier run comes first"


def test_without_a_checkpoint_a_resumed_run_starts_linearly(toy_data: DataSet, tmp_path: Path):
    expected = start(finetuned(), tmp_path / "run", data=toy_data).state.online.classifier.weight
    found = resume(tmp_path / "run", data=toy_data, allow=[BACKBONE]).state.online.classifier.weight
    assert torch.equal(found, expected)


def test_finetuning_continues_what_a_run_learned_on_frozen_features(toy_data: DataSet, tmp_path: Path):
    swapped = replace(toy_data, train=Images(toy_data.train.pixels, (toy_data.train.labels + 1) % 3))
    earlier = complete(start(settings("supervised", train__steps=100), tmp_path / "frozen", data=swapped))
    run = start(finetuned(train__start_from=str(earlier.folder.path)), tmp_path / "run", data=toy_data)
    assert run.state.online.frozen is None
    wrong = (toy_data.test.labels + 1) % 3
    found = evaluate(run.state.method, run.state.average, Images(toy_data.test.pixels, wrong)).accuracy
    assert found > 80, "of what the earlier run learned, and not of the labels that this one has"
    complete(run)


def test_predictions_of_a_method_of_its_own_give_no_classifier(toy_data: DataSet, tmp_path: Path):
    earlier = complete(start(settings("paws", train__steps=4), tmp_path / "frozen", data=toy_data))
    changed = {"train__backbone": "finetune", "train__linear_start": True, "train__steps": 2}
    changed["train__start_from"] = str(earlier.folder.path)
    complete(start(settings("paws", **changed), tmp_path / "run", data=toy_data))
    found, expected = (
        start(finetuned(train__start_from=earlier_run), tmp_path / name, data=toy_data).state.online.classifier.weight
        for name, earlier_run in (("from", str(earlier.folder.path)), ("alone", None))
    )
    assert torch.equal(found, expected)


def test_another_backbone_does_not_take_the_classifier(toy_data: DataSet, tmp_path: Path):
    earlier = complete(start(settings("fixmatch", train__steps=4), tmp_path / "frozen", data=toy_data))
    own = tmp_path / "wide.py"
    wider = "    features = 6\n    forward = lambda self, x: torch.cat([Bands.forward(self, x)] * 2, 1)\n"
    own.write_text(Path(BACKBONE.removesuffix(":Bands")).read_text() + "\n\nclass Wide(Bands):\n" + wider)
    changed = finetuned(model__name=f"{own}:Wide", train__start_from=str(earlier.folder.path))
    assert start(changed, tmp_path / "run", data=toy_data).state.online.classifier.weight.shape == (3, 6)


@pytest.mark.parametrize(("method", "same"), [("supervised", True), ("fixmatch", False)])
def test_a_method_that_learns_from_labels_alone_starts_from_them_alone(
    method: str, same: bool, toy_data: DataSet, tmp_path: Path
):
    changed = settings(method, train__backbone="finetune", train__linear_start=True)
    state = start(changed, tmp_path / "a", data=toy_data).state
    pixels = toy_data.train.pixels.clone()
    free = torch.ones(len(pixels), dtype=torch.bool)
    free[state.labeled_index] = False
    pixels[free] = 255 - pixels[free] // 2
    other = replace(toy_data, train=Images(pixels, toy_data.train.labels))
    found = start(changed, tmp_path / "b", data=other).state
    assert torch.equal(found.labeled_index, state.labeled_index)
    assert torch.equal(found.online.classifier.weight, state.online.classifier.weight) == same


def test_only_finetuning_can_start_linearly():
    with pytest.raises(InvalidValue, match=r"train\.linear_start must be false"):
        settings("fixmatch", train__linear_start=True)


@pytest.mark.parametrize("use", ["frozen", "finetune"])
def test_the_accuracy_is_estimated_from_the_labels_alone(use: str, toy_data: DataSet, tmp_path: Path):
    changed = {"train__backbone": use, "train__linear_start": use == "finetune", "data__labels": 30}
    run = complete(start(settings("fixmatch", train__steps=60, **changed), tmp_path / "run", data=toy_data))
    before = {name: value.clone() for name, value in run.state.average.state_dict().items()}
    judged = estimate_accuracy(run)
    assert judged is not None
    free = torch.ones(len(toy_data.train), dtype=torch.bool)
    free[run.split.labeled] = False
    unlabeled = Images(toy_data.train.pixels[free], toy_data.train.labels[free])
    true = evaluate(run.state.method, run.state.average, unlabeled).accuracy
    assert judged.low <= true <= judged.high + 0.1
    assert judged.high - judged.low < 25
    assert all(torch.equal(before[name], value) for name, value in run.state.average.state_dict().items())


def test_a_model_that_learned_wrong_labels_has_a_low_estimate(toy_data: DataSet, tmp_path: Path):
    random = torch.randint(3, (len(toy_data.train),), generator=torch.Generator().manual_seed(0))
    wrong = replace(toy_data, train=Images(toy_data.train.pixels, random))
    changed = {"train__backbone": "finetune", "train__linear_start": True, "data__labels": 30}
    run = complete(start(settings("fixmatch", train__steps=6, **changed), tmp_path / "run", data=wrong))
    judged = estimate_accuracy(run)
    assert judged is not None
    assert judged.accuracy < 60


def test_a_run_from_scratch_and_too_few_labels_have_no_estimate(toy_data: DataSet, tmp_path: Path):
    scratch = complete(start(toy_settings(train__steps=2), tmp_path / "scratch", data=toy_data))
    assert estimate_accuracy(scratch) is None
    few = complete(start(settings(data__labels=3, train__steps=2), tmp_path / "few", data=toy_data))
    assert estimate_accuracy(few) is None


def test_a_fine_tuned_run_is_reviewed_by_features_of_the_pretrained_backbone(toy_data: DataSet, tmp_path: Path):
    run = complete(start(finetuned(train__steps=4), tmp_path / "run", data=toy_data))
    expected = store_before(run.state).plain(toy_data.train.pixels)
    assert not torch.equal(run.state.average(toy_data.train.pixels).feature.half(), expected), "they have changed"
    summary = run.folder.result()
    assert summary is not None
    frozen = complete(start(settings("fixmatch", train__steps=4), tmp_path / "frozen", data=toy_data)).folder.result()
    assert frozen is not None
    assert summary["probes"] == frozen["probes"], "both are of the backbone as it came"


def test_a_network_without_pretrained_weights_cannot_be_frozen(toy_data: DataSet, tmp_path: Path):
    with pytest.raises(AggMatchError, match="small-4"):
        start(toy_settings(train__backbone="frozen"), tmp_path / "run", data=toy_data)
    assert not (tmp_path / "run").exists()


def test_a_frozen_model_is_exported_with_its_backbone(toy_data: DataSet, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from aggmatch.inference.export import to_onnx

    run = complete(start(settings("fixmatch", train__steps=4), tmp_path / "run", data=toy_data))
    assert to_onnx(TrainedModel.load(run.folder.path, allow=[BACKBONE]))  # compares the predictions itself
