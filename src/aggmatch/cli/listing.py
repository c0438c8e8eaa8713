"""The tables of `aggmatch list`: everything that settings can name, and where it comes from."""

import json
from collections.abc import Callable, Iterable, Sequence
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
from aggmatch.recipes import ANY, DATA, METHOD, NAMED, OWN
from aggmatch.registry import Registry, is_code
from aggmatch.settings import RunSettings, resolve
from aggmatch.tables import Table

USUAL = "cifar10"
"""A data set on which named recipes have the values that they have on most."""


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


def recipes() -> list[Table]:
    """Named recipes side by side, and the defaults of data sets and of methods on them."""
    folders = {f"{OWN}, frozen": recipe_of_use("frozen", "cpu")}
    for use, device in product(("finetune", "scratch"), ("cpu", "cuda")):
        folders[f"{OWN}, {use}, {device}"] = recipe_of_use(use, device)
    defaults = {(name, "all"): values for name, values in (DATA | folders).items()} | METHOD
    rows = [
        [data, method, ", ".join(f"{key}={written(value)}" for key, value in values.items())]
        for (data, method), values in defaults.items()
    ]
    return [
        side_by_side(
            ["paper", "cold-start", "neighbours"],
            DATA,
            "Recipes paper, cold-start and neighbours: settings that differ",
        ),
        side_by_side(["paper", "frozen", "finetune"], [], "Recipes of a pretrained backbone: settings that differ"),
        Table(["data set", "method", "settings"], rows, "Defaults of data sets, and of methods on them"),
    ]


def side_by_side(names: Sequence[str], data_sets: Iterable[str], title: str) -> Table:
    """A row for each setting in which named recipes differ, with its value in each of them, and for whom it holds.

    data_sets: those that also have rows, for settings with other values than on most data sets.
    """
    anyone = {key for name in names for key in NAMED[name].get(ANY, {})}
    found: dict[tuple[str, ...], list[str]] = {}
    for method in dict.fromkeys(method for name in names for method in NAMED[name] if method != ANY):
        usual = recipe_values(USUAL, method, names)
        differing = [key for key, values in usual.items() if len(set(values)) > 1]
        for key in differing:
            found.setdefault((key, *usual[key], ""), []).append(method)
        for data in data_sets:
            for key, values in recipe_values(data, method, names).items():
                if values != usual[key] and (key in differing or len(set(values)) > 1):
                    found.setdefault((key, *values, f" on {data}"), []).append(method)
    rows = [
        [key, *values, f"{'all methods' if key in anyone else ', '.join(methods)}{where}"]
        for (key, *values, where), methods in found.items()
    ]
    return Table(["setting", *names, "for"], sorted(rows, key=lambda row: row[-1].partition(" on ")[2]), title)


def recipe_values(data: str, method: str, names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each setting in named recipes, by dotted name, without the name of the recipe itself."""
    chosen = {"data.name": data, "method.name": method}
    each = [flatten(resolve(chosen | {"recipe": name}).to_dict()) for name in names]
    return {key: tuple(written(values[key]) for values in each) for key in each[0] if key != "recipe"}


def written(value: Any) -> str:
    """A value as JSON, without quotes."""
    return json.dumps(value).replace('"', "")


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
