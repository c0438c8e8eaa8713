"""The data set of a run: where it is, how several processes read it, and whether a run can train on it."""

from dataclasses import replace
from pathlib import Path

from aggmatch.data import DataSet, locate
from aggmatch.data.images import check_images
from aggmatch.distributed import Processes
from aggmatch.errors import AggMatchError
from aggmatch.settings import RunSettings


def read_data(settings: RunSettings, download: bool, processes: Processes) -> DataSet:
    """Return the data set of the settings; process 0 reads it first and stores what can be cached."""
    with processes.first_alone():
        return settings.load_data(download=download)


def located(settings: RunSettings) -> RunSettings:
    """The settings with the absolute paths of own images and of their table of labels."""
    data, table = settings.data, settings.data.labels_file
    table = str(Path(table).resolve()) if table else None
    return replace(settings, data=replace(data, name=locate(data.name), labels_file=table))


def check_data(data: DataSet, settings: RunSettings) -> None:
    """Raise an `AggMatchError` if no run can train on the data set."""
    if data.name != settings.data.name:
        raise AggMatchError(f"The data set is called '{data.name}', but data.name is '{settings.data.name}'.")
    if not len(data.test) and settings.data.holdout > 0:
        raise AggMatchError(
            f"{data.name} has no test images, so no accuracy can be measured. Label at least two images of a class, "
            f"add test images, or train without them: data.holdout=0",
            options="--set data.holdout=0",
        )
    check_images(data.train.pixels)
