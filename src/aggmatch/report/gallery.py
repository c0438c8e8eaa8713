"""Wrong test images as a gallery: each with its true class, the predicted class and the confidence."""

import base64
import io
import warnings
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from aggmatch.data import DataSet
from aggmatch.report.test_results import test_predictions
from aggmatch.runs.stored import StoredRun

SHOWN = 24
"""Most images of a gallery."""
SIDE = 96
"""Height and width of a thumbnail in pixels."""


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
    """The wrong test images of a run, the surest mistakes first."""

    wrong: int
    """Number of wrong test images."""
    images: int
    """Number of test images."""
    shown: list[WrongImage]


def make_gallery(run: StoredRun) -> Gallery:
    """Return the wrong test images of a run that has a model, with thumbnails of the surest mistakes.

    Example: `make_gallery(read_run(Path("runs/mine"))).wrong`.
    """
    result, data = test_predictions(run), run.data()
    confidence = result.probs.amax(1)
    wrong = (result.predicted != result.labels).nonzero().flatten()
    surest = wrong[confidence[wrong].argsort(descending=True, stable=True)][:SHOWN].tolist()
    shown = [
        WrongImage(
            name=data.test.call(position),
            thumbnail=thumbnail(data, position),
            truth=data.classes[int(result.labels[position])],
            predicted=data.classes[int(result.predicted[position])],
            confidence=float(confidence[position]),
        )
        for position in surest
    ]
    return Gallery(len(wrong), len(result.labels), shown)


def thumbnail(data: DataSet, position: int) -> str:
    """A test image as a data URI: from the original photo if it can be read, else the pixels that the model sees."""
    photo = original(data, position)
    pixels = (data.test.pixels[position] if photo is None else photo).permute(1, 2, 0).numpy()
    kind, options = ("png", {}) if photo is None else ("jpeg", {"quality": 80})
    buffer = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def original(data: DataSet, position: int) -> Tensor | None:
    """The photo of a test image in a folder of images, cropped as for training, (3, 96, 96); None if there is none."""
    file = Path(data.name) / data.test.names[position] if data.test.names else None
    if file is None or not file.is_file():
        return None
    from aggmatch.data.folder import decode

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about odd files, which training has named already
            return decode(file, SIDE, 3)
    except Exception:  # Pillow raises almost any for a file that is no image; the pixels will do
        return None
