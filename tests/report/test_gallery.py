"""Wrong test images: which are shown, in which order, and as which picture."""

import base64
import io
import re
import shutil
from collections import deque

import numpy as np
import pytest
import torch
from PIL import Image

from aggmatch.evaluation import Evaluation
from aggmatch.report.page import page
from aggmatch.report.test_results import PREDICTIONS, SHOWN, Gallery, make_gallery
from aggmatch.runs.stored import StoredRun, read_runs
from aggmatch.settings import resolve
from aggmatch.training.begin import start

QUICK = {"model.name": "small-4", "train.steps": 2, "train.batch": 2, "train.unlabeled_ratio": 2, "data.side": 16}
QUICK |= {"method.slots": 8, "method.subsets": 2, "data.labels": None}
COLORS = {"red roses": (200, 30, 30), "blue bells": (30, 30, 200)}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run of two steps on a folder of photos with six test images."""
    root = tmp_path_factory.mktemp("own")
    for name, color in COLORS.items():
        for part, count in ((f"train/{name}", 3), (f"test/{name}", 3), ("unlabeled", 4)):
            (root / "photos" / part).mkdir(parents=True, exist_ok=True)
            for number in range(count):
                Image.new("RGB", (120, 90), color).save(root / "photos" / part / f"{name[0]}{number}.jpg")
    settings = resolve(QUICK | {"data.name": str(root / "photos")})
    deque(start(settings, root / "run").train(), maxlen=0)
    return root / "run"


@pytest.fixture
def run(trained, tmp_path) -> StoredRun:
    """The run, read again; its predictions are those of `answer`."""
    (stored,) = read_runs([shutil.copytree(trained, tmp_path / "run")])
    return stored


def answer(run: StoredRun, predicted: list[int], confidence: list[float]) -> None:
    """Let the model predict these classes of the test images with these confidences."""
    probs = torch.tensor(
        [[1 - sure, sure] if label else [sure, 1 - sure] for label, sure in zip(predicted, confidence, strict=True)]
    )
    run.once(PREDICTIONS, lambda: Evaluation(probs, run.data().test.labels))


def pixels(uri: str) -> np.ndarray:
    """The picture of a data URI."""
    return np.array(Image.open(io.BytesIO(base64.b64decode(uri.split(",")[1]))))


def test_wrong_images_are_shown_with_both_classes_and_the_surest_first(run):
    assert run.data().classes == ("blue bells", "red roses")
    assert run.data().test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    answer(run, [0, 1, 0, 1, 0, 0], [0.9, 0.6, 0.9, 0.9, 0.99, 0.8])
    gallery = make_gallery(run)
    assert (gallery.wrong, gallery.images) == (3, 6)
    found = [(image.name, image.truth, image.predicted, round(image.confidence, 2)) for image in gallery.shown]
    assert found == [
        ("test/red roses/r1.jpg", "red roses", "blue bells", 0.99),
        ("test/red roses/r2.jpg", "red roses", "blue bells", 0.8),
        ("test/blue bells/b1.jpg", "blue bells", "red roses", 0.6),
    ]


def test_a_thumbnail_is_the_photo_and_without_it_the_pixels_that_the_model_sees(run):
    answer(run, [1, 1, 1, 0, 0, 0], [0.9] * 6)
    photo = pixels(make_gallery(run).shown[0].thumbnail)
    assert photo.shape == (72, 96, 3)
    assert np.abs(photo.reshape(-1, 3).mean(0) - COLORS["blue bells"]).max() < 5
    nameless = run.data().test.names
    object.__setattr__(run.data().test, "names", ())
    assert pixels(make_gallery(run).shown[0].thumbnail).shape == (16, 16, 3)
    object.__setattr__(run.data().test, "names", nameless)


def test_a_gallery_has_at_most_two_dozen_images(rival_folders):
    (digits,) = read_runs(rival_folders[:1])
    gallery = make_gallery(digits)
    assert len(gallery.shown) == SHOWN < gallery.wrong


def test_the_page_on_own_images_starts_with_the_wrong_ones_and_says_once_what_nobody_knows(run, fakes):
    answer(run, [0, 1, 0, 1, 0, 0], [0.9, 0.6, 0.9, 0.9, 0.99, 0.8])
    source = page([run])
    assert source.index("3 of 6 test images are wrong") < source.index("Test accuracy, averaged network")
    gallery = source.split('aria-labelledby="wrong-title"')[1].split("</section>")[0]
    assert len(re.findall("<img ", gallery)) == 3
    assert '<span class="small">0.99<br>r1.jpg</span>' in gallery, "a phone and paper do not show titles"


def test_a_run_without_mistakes_says_so(run, fakes):
    answer(run, [0, 0, 0, 1, 1, 1], [0.9] * 6)
    assert make_gallery(run) == Gallery(0, 6, [])
    assert "All 6 test images are right" in page([run])


def test_the_true_classes_that_nobody_knows_are_mentioned_once(run, quick_map):
    answer(run, [0, 0, 0, 1, 1, 1], [0.9] * 6)
    assert page([run]).count("obody knows the true classes") == 1
