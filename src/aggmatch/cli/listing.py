"""The tables of `aggmatch list`: everything that settings can name, and where it comes from."""

from collections.abc import Callable
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from aggmatch.augment.views import VIEWS
from aggmatch.config import describe, flatten
from aggmatch.data import SOURCES, is_own_images
from aggmatch.errors import unknown
from aggmatch.methods import METHODS, load_method
from aggmatch.models import MODELS
from aggmatch.models.registry import FAMILIES
from aggmatch.own_recipe import recipe_of_use
from aggmatch.recipes import DATA, METHOD, NAMED, NAMED_ON, OWN
from aggmatch.registry import Registry, is_code
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table


def parts(registry: Registry[Any], columns: list[str], row: Callable[[str, Any], list[Any]]) -> Table:
    """A row for each part of a registry: its name, what `row` says about it, and the package it comes from."""
    rows = [[name, *row(name, registry.load(name)), place] for name, place in registry.origins()]
    return Table([registry.kind, *columns, "from"], rows)


def first_line(part: Any) -> str:
    """The first line of a docstring."""
    return (part.__doc__ or "").strip().split("\n")[0]


def methods() -> Table:
    """Methods with a description and their reference."""
    return parts(METHODS, ["description", "reference"], lambda _, method: [first_line(method), method.reference])


def data(data_dir: Path) -> Table:
    """Data sets, and whether their files are in a folder."""

    def row(_: str, source: Any) -> list[Any]:
        channels, height, width = source.shape
        images = f"{source.train_size:,} + {source.test_size:,} of {height}×{width}×{channels}"
        megabytes = sum(archive.size for archive in source.archives) / 1e6
        if not source.present(data_dir):
            files = f"missing in {data_dir}; --download fetches {megabytes:.0f} MB"
        else:
            files = f"in {data_dir}" if source.archives else "come with the package"
        return [source.description, len(source.classes), images, files]

    return parts(SOURCES, ["description", "classes", "training + test images", "files"], row)


def models() -> Table:
    """Networks with the form of their names and a description."""
    return parts(
        MODELS, ["name in model.name", "description"], lambda name, part: [FAMILIES.get(name, name), first_line(part)]
    )


def views() -> Table:
    """Views with a description."""
    return parts(VIEWS, ["description"], lambda _, view: [first_line(view)])


def figures() -> Table:
    """Figures with a description, their chapter in the report, and what a run must have kept for them."""
    from aggmatch.report.figures import FIGURES, describe

    return parts(
        FIGURES, ["description", "chapter", "needs"], lambda name, part: [describe(name), part.chapter, part.needs]
    )


def recipes() -> Table:
    """Defaults of data sets, of methods on them, and named recipes with the paper's value of each setting."""
    folders = {f"{OWN}, frozen": recipe_of_use("frozen", "cpu")}
    for use, device in product(("finetune", "scratch"), ("cpu", "cuda")):
        folders[f"{OWN}, {use}, {device}"] = recipe_of_use(use, device)
    tables = {(name, ""): values for name, values in (DATA | folders).items()} | METHOD
    rows = [
        ["paper", data, method or "all", key, value, None]
        for (data, method), values in tables.items()
        for key, value in values.items()
    ]
    for named, methods in NAMED.items():
        for method, values in methods.items():
            paper = paper_values("cifar10", method or "aggmatch")
            rows += [[named, "all", method or "all", key, value, paper[key]] for key, value in values.items()]
    for (named, data, method), values in NAMED_ON.items():
        paper = paper_values(data, method)
        rows += [[named, data, method, key, value, paper[key]] for key, value in values.items()]
    shown = [[str(cell) if cell is not None else None for cell in row] for row in rows]
    return Table(["recipe", "data set", "method", "setting", "value", "paper's value"], shown)


def paper_values(data: str, method: str) -> dict[str, Any]:
    """Return all settings of the recipe `paper` by dotted name."""
    return flatten(resolve({"data.name": data, "method.name": method, "recipe": "paper"}).to_dict())


def settings(method: str, data: str | None = None) -> Table:
    """Every setting of a run with its meaning and its default, or with `data` its value in that data set's recipe."""
    if data and data not in SOURCES and not is_own_images(data) and not is_code(data):
        raise unknown("data set", data, SOURCES.names(), see="aggmatch list data")
    values = flatten(resolve({"data.name": data, "method.name": method}).to_dict()) if data else {}
    sections = [field.name for field in fields(RunSettings) if field.name not in ("method", "method_name")]
    described = [setting for setting in describe(RunSettings) if setting.key.split(".")[0] in sections]
    described += describe(load_method(method).config_type, "method.")
    rows = [[each.key, str(values.get(each.key, each.default)), " ".join(each.text.split())] for each in described]
    return Table(["setting", f"on {data}" if data else "default", "meaning"], rows)
