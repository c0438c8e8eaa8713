"""How long a run will take on this machine, said before it starts."""

import torch

from aggmatch.bench.timing import time_calls
from aggmatch.data import DataSet, Split
from aggmatch.devices import choose_device, computes_in_bfloat16, computing_on
from aggmatch.experiments.estimate import measure
from aggmatch.features.self_training import MOST
from aggmatch.features.store import AVERAGED
from aggmatch.methods import load_method
from aggmatch.models import build_network
from aggmatch.models.pretrained import freeze
from aggmatch.runs.stats import FEW_TEST_IMAGES
from aggmatch.settings import RunSettings
from aggmatch.tables import duration
from aggmatch.training.crossval import FOLDS, SHARE

FEW = 16
"""Images on which a frozen backbone is timed."""
FEATURE_STEP = 0.02
"""Seconds of a step on cached features; it hardly depends on the backbone or the device."""


def forecast(settings: RunSettings, data: DataSet, split: Split) -> str:
    """Return how long a run takes on this machine, in words: `about 2 min 10 s`.

    Measures for some seconds. Example: `forecast(settings, data, make_split(data, settings.data))`.
    """
    use, steps = settings.train.backbone, settings.train.steps
    training = steps * (FEATURE_STEP if use == "frozen" else measure(settings, (data, split)).seconds)
    said = f"about {duration(training)}"
    if use != "scratch":
        said = f"about {duration(training + seconds_of_features(settings, data))}"
        said += f", or {duration(training)} if its features are cached" if use == "frozen" else ""
        if len(data.test) < FEW_TEST_IMAGES:
            said += f"; then {duration(training * FOLDS / SHARE)} to estimate the accuracy"
    return said


def seconds_of_features(settings: RunSettings, data: DataSet) -> float:
    """Return the seconds in which the pretrained backbone computes the features of a run.

    Fine-tuning starts with those of the images and of two weak views, of a sample if there are many.
    """
    device, names = choose_device(settings.runtime.device), load_method(settings.method_name).views
    channels, classes = data.train.pixels.shape[1], len(data.classes)
    network = build_network(
        settings.model.name, channels=channels, classes=classes, use="frozen", side=settings.model.side
    )
    assert network.frozen is not None, "it was built to be frozen"
    freeze(network.frozen)
    network.mixed = computes_in_bfloat16(settings.train.precision, device)
    network.to(device)
    images = data.train.pixels[:FEW].to(device)
    with torch.no_grad(), computing_on(device, threads=1, search=False):
        network.embed(images)  # the first call takes longer
        seconds = time_calls(lambda: network.embed(images), device, 1).median
    if settings.train.backbone == "frozen":
        views = settings.views.cached * len({*names.labeled, *names.unlabeled})
        passes = len(data.train) * (1 + views) + len(data.test)
    else:
        passes = min(len(data.train), MOST) * (1 + AVERAGED) + len(data.test)
    return passes * seconds / len(images) / (torch.get_num_threads() if device.type == "cpu" else 1)
