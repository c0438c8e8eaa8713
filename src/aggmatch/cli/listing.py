"""What there is to choose from, as tables."""

from dataclasses import fields
from pathlib import Path

from aggmatch.config import describe, flatten
from aggmatch.data import SOURCES, is_folder
from aggmatch.errors import unknown
from aggmatch.methods import METHODS, load_method
from aggmatch.recipes import DATA, FOLDER, METHOD
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table


def methods() -> Table:
    """Methods with a sentence and their reference."""
    rows = []
    for name in METHODS.names():
        method = load_method(name)
        rows.append([name, (method.__doc__ or "").splitlines()[0], method.reference])
    return Table(["method", "what it does", "reference"], rows)


def data(data_dir: Path) -> Table:
    """Data sets, and whether their files are in a folder."""
    rows = []
    for source in SOURCES.values():
        channels, height, width = source.shape
        images = f"{source.train_size:,} + {source.test_size:,} of {height}×{width}×{channels}"
        megabytes = sum(archive.size for archive in source.archives) / 1e6
        missing = f"missing in {data_dir}; --download fetches {megabytes:.0f} MB"
        there = "come with the package" if not source.archives else f"in {data_dir}"
        rows.append(
            [
                source.name,
                source.description,
                len(source.classes),
                images,
                there if source.present(data_dir) else missing,
            ]
        )
    return Table(["data set", "what it is", "classes", "training + test images", "files"], rows)


def recipes() -> Table:
    """Defaults of data sets and of methods on them."""
    tables = {(name, ""): values for name, values in (DATA | {"a folder of images": FOLDER}).items()} | METHOD
    rows = [
        [data, method or "all", f"{key} = {value}"]
        for (data, method), values in tables.items()
        for key, value in values.items()
    ]
    return Table(["data set", "method", "setting"], rows)


def settings(method: str, data: str | None = None) -> Table:
    """Every setting of a run with its meaning, and its default, or its value on a data set by the recipe of that."""
    if data and data not in SOURCES and not is_folder(data):
        raise unknown("data set", data, SOURCES, see="aggmatch list data")
    values = flatten(resolve({"data.name": data, "method.name": method}).to_dict()) if data else {}
    sections = [field.name for field in fields(RunSettings) if field.name not in ("method", "method_name")]
    described = [setting for setting in describe(RunSettings) if setting.key.split(".")[0] in sections]
    described += describe(load_method(method).config_type, "method.")
    rows = [[each.key, str(values.get(each.key, each.default)), " ".join(each.text.split())] for each in described]
    return Table(["setting", f"on {data}" if data else "default", "meaning"], rows)
