"""Models from run folders predict as they did at the end of their runs."""

import shutil
from dataclasses import replace
from random import Random

import pytest
import torch
from PIL import Image

import aggmatch
from aggmatch.config import Layer
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import evaluate
from aggmatch.inference.model import TrainedModel
from aggmatch.runs import checkpoint as checkpoints
from aggmatch.runs.checkpoint import Checkpoint, pack, unpack
from aggmatch.runs.folder import RunFolder
from aggmatch.settings import resolve

QUICK = {"data.name": "digits", "model.name": "small-4", "train.steps": 3, "runtime.snapshots": []}


@pytest.fixture(scope="module", params=["supervised", "paws"])
def run(request, tmp_path_factory) -> aggmatch.Run:
    batch = 20 if request.param == "paws" else 10
    changes = QUICK | {"method.name": request.param, "train.batch": batch, "train.unlabeled_ratio": 1}
    run = aggmatch.start(resolve([Layer("the test", changes)]), tmp_path_factory.mktemp("runs") / request.param)
    for _ in run.train():
        pass
    return run


def test_a_model_reproduces_the_accuracy_in_the_summary(run):
    model = TrainedModel.load(str(run.folder.path))
    test = run.data.test
    probs = model.predict(test.pixels)
    assert probs.shape == (360, 10)
    assert not probs.requires_grad
    torch.testing.assert_close(probs.sum(1), torch.ones(360))
    right = (probs.argmax(1) == test.labels).sum()
    assert 100 * int(right) / 360 == run.folder.result()["accuracy"]
    assert model.evaluate(run.data).accuracy == run.folder.result()["accuracy"]


def test_loading_and_predicting_change_neither_random_numbers_nor_images(run):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    pixels = run.data.test.pixels[:7]
    before = pixels.clone()
    TrainedModel.load(run.folder.path).predict(pixels)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(pixels, before)


def test_a_model_runs_on_a_machine_without_the_device_it_was_trained_on(run, tmp_path):
    shutil.copytree(run.folder.path, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    config = folder.read_config()
    folder.write_json(folder.config, config | {"runtime": {**config["runtime"], "device": "cuda:7"}})
    expected = TrainedModel.load(run.folder.path).predict(run.data.test.pixels[:3])
    assert torch.equal(
        TrainedModel.load(folder.path, {"runtime.graph": False}).predict(run.data.test.pixels[:3]), expected
    )
    with pytest.raises(AggMatchError, match=r"runtime\.device is 'cuda:7'"):
        TrainedModel.load(folder.path, {"runtime.device": "cuda:7"})


def test_no_images_give_no_predictions(run):
    assert TrainedModel.load(run.folder.path).predict(run.data.test.pixels[:0]).shape == (0, 10)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 8, 8), "must be uint8"),
        (torch.zeros(2, 8, 8, dtype=torch.uint8), "must be uint8 of shape"),
        (torch.zeros(2, 3, 8, 8, dtype=torch.uint8), r"\(1, 8, 8\), got \(3, 8, 8\)"),
        (torch.zeros(2, 1, 9, 9, dtype=torch.uint8), r"\(1, 8, 8\), got \(1, 9, 9\)"),
    ],
)
def test_images_of_a_wrong_type_or_shape_are_an_error(run, images, message):
    with pytest.raises(AggMatchError, match=message):
        TrainedModel.load(run.folder.path).predict(images)


def test_arrays_pil_images_files_bytes_and_folders_are_scaled_as_in_training(run, tmp_path):
    model = TrainedModel.load(run.folder.path)
    pixels = run.data.test.pixels[:4]
    expected = model.predict(pixels)
    pictures = [Image.fromarray(image.numpy()) for image in pixels[:, 0]]
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
    contents = [(tmp_path / f"{number}.png").read_bytes() for number in range(4)]
    arrays = pixels[:, 0].numpy()
    files = [str(tmp_path / "0.png"), tmp_path / "1.png", contents[2], pictures[3]]
    for same in (arrays, arrays / 255, arrays.astype(int), pictures, contents, files, tmp_path, str(tmp_path)):
        assert torch.equal(model.predict(same), expected)
    torch.testing.assert_close(model.predict(files[0]), expected[:1])
    assert model.predict([]).shape == (0, 10)
    large = arrays.repeat(3, axis=1).repeat(3, axis=2)
    assert (model.predict(large) - expected).abs().max() < 0.1


def test_a_folder_is_evaluated_by_its_path_as_text(run, tmp_path):
    test = run.data.test
    for number, (image, label) in enumerate(zip(test.pixels[:20, 0], test.labels[:20], strict=True)):
        file = tmp_path / str(int(label)) / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        Image.fromarray(image.numpy()).save(file)
    model = TrainedModel.load(run.folder.path)
    result = model.evaluate(str(tmp_path))
    assert result.accuracy == model.evaluate(tmp_path).accuracy
    assert len(result.labels) == 20


def test_a_model_without_the_buffers_of_its_method_is_an_error(run, tmp_path):
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "corrupt"))
    saved = unpack(folder.model.read_bytes())
    kept = {name: tensor for name, tensor in saved.tensors.items() if not name.startswith("method.")}
    folder.model.write_bytes(pack(Checkpoint(kept, saved.facts)))
    if run.settings.method_name == "supervised":
        TrainedModel.load(folder.path)
    else:
        with pytest.raises(AggMatchError, match=r"Cannot read .*model\.safetensors"):
            TrainedModel.load(folder.path)


def test_a_model_with_a_value_that_is_not_finite_is_corrupt(run, tmp_path):
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "corrupt"))
    saved = unpack(folder.model.read_bytes())
    name = next(name for name, tensor in saved.tensors.items() if tensor.is_floating_point())
    saved.tensors[name].flatten()[0] = float("nan")
    folder.model.write_bytes(pack(saved))
    with pytest.raises(AggMatchError, match=r"model\.safetensors is corrupt"):
        TrainedModel.load(folder.path)


def test_a_data_set_with_other_classes_cannot_be_evaluated(run):
    other = replace(run.data, classes=tuple("abcdefghij"), noise_map={})
    with pytest.raises(AggMatchError, match="a, b, c"):
        TrainedModel.load(run.folder.path).evaluate(other)


def test_a_run_without_a_model_is_an_error(run, tmp_path):
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "run"))
    folder.model.unlink()
    with pytest.raises(AggMatchError, match=r"model\.safetensors is missing.*resume the run"):
        TrainedModel.load(folder.path)
    folder.summary.unlink()
    shutil.rmtree(folder.checkpoints)
    with pytest.raises(AggMatchError, match=r"run has no model and no checkpoint yet"):
        TrainedModel.load(folder.path)


# Unfinished runs -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["supervised", "paws", "featmatch"])
def interrupted(request, tmp_path_factory) -> aggmatch.Run:
    """A run that stops after the step in which it wrote a checkpoint."""
    batch = 20 if request.param == "paws" else 10
    changes = QUICK | {"method.name": request.param, "train.batch": batch, "train.unlabeled_ratio": 1}
    changes |= {"train.steps": 6, "runtime.checkpoint_every": 4, "train.evaluate_every": 4, "train.log_every": 4}
    if request.param == "featmatch":
        changes |= {"method.warmup": 1, "method.refresh_every": 1}
    run = aggmatch.start(resolve([Layer("the test", changes)]), tmp_path_factory.mktemp("runs") / request.param)
    next(run.train())
    return run


def test_an_unfinished_run_predicts_with_its_newest_checkpoint_and_says_so(interrupted):
    state, test = interrupted.state, interrupted.data.test
    expected = evaluate(state.method, state.evaluated, test, interrupted.labeled)
    with pytest.warns(UserWarning, match=r"is not finished: using its checkpoint of step 4 of 6\.$"):
        model = TrainedModel.load(interrupted.folder.path)
    assert model.classes == interrupted.data.classes
    torch.testing.assert_close(model.evaluate(interrupted.data).probs, expected.probs)


def test_a_checkpoint_without_facts_on_the_data_takes_them_from_the_data_set(interrupted, tmp_path):
    folder = RunFolder(shutil.copytree(interrupted.folder.path, tmp_path / "old"))
    saved = checkpoints.load_newest(folder.checkpoints)
    assert saved is not None
    new = ("model", "classes", "channels", "size", "network", "mixed", "labels", "images")
    facts = {name: value for name, value in saved.facts.items() if name not in new}
    checkpoints.save(folder.checkpoints, 5, Checkpoint(saved.tensors, facts | {"step": 5}))
    with pytest.warns(UserWarning, match="checkpoint of step 5"):
        old = TrainedModel.load(folder.path)
    with pytest.warns(UserWarning, match="checkpoint of step 4"):
        model = TrainedModel.load(interrupted.folder.path)
    pixels = interrupted.data.test.pixels[:5]
    assert torch.equal(old.predict(pixels), model.predict(pixels))


def test_no_flipped_bit_of_a_model_changes_a_prediction(run, tmp_path):
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "run"))
    content, pixels = folder.model.read_bytes(), run.data.test.pixels[:50]
    expected = TrainedModel.load(folder.path).predict(pixels)
    random, refused = Random(0), 0
    for _ in range(100):
        damaged = bytearray(content)
        damaged[random.randrange(len(content))] ^= 1 << random.randrange(8)
        folder.model.write_bytes(damaged)
        try:
            assert torch.equal(TrainedModel.load(folder.path).predict(pixels), expected)
        except AggMatchError as error:
            refused += str(error).startswith(f"Cannot read {folder.model}: ")
    assert refused >= 95  # a flip in the word "digest" itself is harmless


@pytest.mark.parametrize(
    "change",
    [
        {"classes": 10},
        {"classes": [1, 2]},
        {"size": "8"},
        {"size": -1},
        {"channels": 7},
        {"labels": [1]},
        {"images": 10**30},
        {"step": None},
        {"mixed": "no"},
    ],
)
def test_the_error_names_a_fact_of_a_wrong_type(run, tmp_path, change):
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "run"))
    saved = unpack(folder.model.read_bytes())
    folder.model.write_bytes(pack(Checkpoint(saved.tensors, {**saved.facts, **change})))
    (key,) = change
    with pytest.raises(AggMatchError, match=rf"Cannot read .*model\.safetensors: {key}\b.* must be"):
        TrainedModel.load(folder.path)
