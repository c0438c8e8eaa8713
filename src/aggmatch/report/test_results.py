"""Test results of trained models: by class, by confidence, one model against another, and the wrong images."""

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic

import torch
from PIL import Image
from scipy.stats import binomtest

from aggmatch.data import Images, is_own_images
from aggmatch.data.own.decode import read_thumbnail
from aggmatch.data.own.images import original_file
from aggmatch.devices import choose_device, hardware
from aggmatch.errors import AggMatchError
from aggmatch.evaluation import Evaluation, evaluate
from aggmatch.inference.model import TrainedModel
from aggmatch.report.summary import test_images_changed
from aggmatch.runs.stats import Interval, wilson
from aggmatch.runs.stored import StoredRun

Progress = Callable[[str], None]
"""Progress callback: receives a line of text."""
THRESHOLDS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.99)
"""Confidences that a prediction must reach to be accepted."""
CHUNK = 1000
"""Test images that are predicted between two progress checks."""
SHOWN = 24
"""Most images of a gallery."""
PREDICTIONS = "test predictions"
"""Key under which a run caches them."""
PROGRESS_EVERY = 10.0
"""Seconds between two progress lines."""


def silent(_: str) -> None:
    """Progress callback that prints nothing."""


def test_predictions(run: StoredRun, progress: Progress = silent) -> Evaluation:  # noqa: PT028
    """Predict the test images with the model of a run, or with the newest checkpoint of an unfinished one.

    The result is cached with the run. progress: called with a line of text at the start, and every 10 seconds.

    Example: `test_predictions(read_run(Path("runs/mine"))).accuracy`.
    """
    return run.once(PREDICTIONS, lambda: predict_test_images(run, progress))


def predict_test_images(run: StoredRun, progress: Progress) -> Evaluation:
    """Predict the test images in chunks, with progress lines."""
    here, allowed = {"runtime.device": run.settings.runtime.device}, run.settings.parts
    model = TrainedModel.load(run.folder.path, here, allow=allowed)  # the run was read, so its code is allowed
    data, test = run.data(), run.data().test
    if not len(test):
        raise AggMatchError(f"{run.name} has no test images.")
    if model.classes != data.classes:  # of a folder, which may have got more
        raise AggMatchError(
            f"{run.name} was trained with the classes {', '.join(model.classes)}, but {run.data_name} has "
            f"{', '.join(data.classes)} now, so its results on the test images are left out."
        )
    progress(f"Model of {run.name} on {len(test):,} test images ...")
    chunks, last = [], monotonic()
    for chunk in torch.arange(len(test)).split(CHUNK):
        chunks.append(evaluate(model.method, model.network, Images(test.pixels[chunk], test.labels[chunk])).probs)
        if monotonic() - last > PROGRESS_EVERY:
            progress(f"  {int(chunk[-1]) + 1:,} of {len(test):,}")
            last = monotonic()
    return Evaluation(torch.cat(chunks), test.labels)


def known_predictions(run: StoredRun) -> Evaluation | None:
    """The predictions of the test images if they have been computed for this run already."""
    return run.computed.get(PREDICTIONS)


def discrepancy(run: StoredRun) -> str:
    """A sentence if the model's accuracy here, or the test images, differ from those of the run; otherwise empty."""
    here, summary = f"{test_predictions(run).accuracy:.2f} %", run.summary
    if summary is None:
        return ""
    recorded = f"{summary['accuracy']:.2f} %"
    if test_images_changed(run):
        return (
            f"The test images here are not those of the run: the model is right on {here} of these; the run reported "
            f"{recorded} on its own."
        )
    if here == recorded:
        return ""
    return (
        f"Evaluated here on {hardware(choose_device(run.settings.runtime.device))}: {here}; the run reported "
        f"{recorded} on {summary['hardware']}, whose arithmetic may differ."
    )


@dataclass(frozen=True)
class Share:
    """A number of correct images out of several."""

    right: int
    images: int

    @property
    def percent(self) -> float:
        """The share in percent."""
        return 100 * self.right / self.images

    @property
    def interval(self) -> Interval:
        """Its 95 % interval."""
        return wilson(self.right, self.images)


@dataclass(frozen=True)
class ClassResult:
    """How well the model recognises one class."""

    name: str
    labels: int
    """Labelled training images of this class, by their given labels."""
    share: Share | None
    """Correct ones among its test images; None if it has no test image."""
    rival: str
    """The class that its images are most often mistaken for; empty without mistakes."""
    mistaken: int
    """Number of these mistakes."""


def class_results(run: StoredRun) -> list[ClassResult]:
    """The result of every class of a run that has a model, in the order of the data set."""
    classes, confusion = run.data().classes, test_predictions(run).confusion
    given = run.split().counts
    results = []
    for number, (name, counts) in enumerate(zip(classes, confusion, strict=True)):
        wrong = counts.clone()
        wrong[number] = 0
        mistaken, images = int(wrong.max()), int(counts.sum())
        share = Share(int(counts[number]), images) if images else None
        rival = classes[int(wrong.argmax())] if mistaken else ""
        results.append(ClassResult(name, given[number], share, rival, mistaken))
    return results


@dataclass(frozen=True)
class Accepted:
    """The test images whose predictions reach a confidence."""

    threshold: float
    kept: Share
    """Accepted ones among all test images."""
    share: Share
    """Correct ones among the accepted."""


def accepted(result: Evaluation, thresholds: Sequence[float] = THRESHOLDS) -> list[Accepted]:
    """Accuracy among the predictions that reach each confidence; thresholds that no prediction reaches are left out."""
    confidence, right = result.probs.amax(1), result.predicted == result.labels
    rows = []
    for threshold in thresholds:
        kept = confidence >= threshold
        if count := int(kept.sum()):
            rows.append(Accepted(threshold, Share(count, len(kept)), Share(int(right[kept].sum()), count)))
    return rows


@dataclass(frozen=True)
class Paired:
    """Two models on the same test images."""

    first: str
    second: str
    only_first: int
    """Images that only the first model classifies correctly."""
    only_second: int
    chance: float
    """Probability of a difference at least as large if both were equally good: the exact McNemar test."""


def paired(first: StoredRun, second: StoredRun, progress: Progress = silent) -> Paired:
    """Compare the models of two finished runs on one data set, image by image."""
    results = (test_predictions(first, progress), test_predictions(second, progress))
    ours, theirs = (each.predicted == each.labels for each in results)
    only_first, only_second = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    differ = only_first + only_second
    chance = float(binomtest(only_first, differ).pvalue) if differ else 1.0
    return Paired(first.name, second.name, only_first, only_second, chance)


# Wrong images -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WrongImage:
    """A test image that the model gets wrong."""

    name: str
    """Its file, or its number among the test images."""
    thumbnail: str
    """A data URI."""
    truth: str
    """Its true class."""
    predicted: str
    confidence: float
    """Probability of the predicted class."""


@dataclass(frozen=True)
class Gallery:
    """The wrong test images of a run, the most confident mistakes first."""

    wrong: int
    """Number of wrong test images."""
    images: int
    """Number of test images."""
    shown: list[WrongImage]


def make_gallery(run: StoredRun) -> Gallery:
    """Return the wrong test images of a run that has a model, with thumbnails of the most confident mistakes.

    Example: `make_gallery(read_run(Path("runs/mine"))).wrong`.
    """
    result, data = test_predictions(run), run.data()
    confidence = result.probs.amax(1)
    wrong = (result.predicted != result.labels).nonzero().flatten()
    surest = wrong[confidence[wrong].argsort(descending=True, stable=True)][:SHOWN].tolist()
    shown = [
        WrongImage(
            name=data.test.call(position),
            thumbnail=thumbnail(data.name, data.test, position),
            truth=data.classes[int(result.labels[position])],
            predicted=data.classes[int(result.predicted[position])],
            confidence=float(confidence[position]),
        )
        for position in surest
    ]
    return Gallery(len(wrong), len(result.labels), shown)


def thumbnail(data: str, images: Images, position: int, cache_dir: str | None = None) -> str:
    """Return an image as a data URI: from the original photo if it can be read, else the pixels that a model sees.

    data: the setting `data.name`. images: of this data set. position: of the image among them.
    """
    photo, buffer = original(data, images, position, cache_dir), io.BytesIO()
    if photo is None:
        pixels = images.pixels[position].permute(1, 2, 0).numpy()
        photo = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        kind, options = "png", {}
    else:
        kind, options = "jpeg", {"quality": 80}
    photo.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def original(data: str, images: Images, position: int, cache_dir: str | None = None) -> Image.Image | None:
    """Return the photo of an image of your own, small; None if there is none or it cannot be read."""
    if not is_own_images(data):
        return None
    file = original_file(data, images.names[position] if images.names else "", cache_dir)
    try:
        return read_thumbnail(file) if file else None
    except OSError:
        return None
