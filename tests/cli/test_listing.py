"""`aggmatch list`: what it shows, and that the listed values are those of a run."""

import pytest

from aggmatch.cli.listing import recipes, written
from aggmatch.config import flatten
from aggmatch.settings import resolve

RECIPES = ("paper", "cold-start", "neighbours")


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("methods", ["aggmatch", "fixmatch", "supervised", "Sohn et al."]),
        ("data", ["digits", "cifar10", "cifar100", "svhn", "come with the package", "--download fetches 170 MB"]),
        ("models", ["wrn-DEPTH-WIDTH", "small-WIDTH", "aggmatch"]),
        ("views", ["weak", "strong", "large_crop"]),
        ("figures", ["accuracy", "confusion", "training"]),
        ("recipes", ["wrn-28-8", "own images, frozen", "cold-start", "method.warmup"]),
        ("settings", ["method.similarity_temperature", "0.05", "τ_sim", "optim.lr"]),
    ],
)
def test_lists_show_every_part_and_where_it_comes_from(run, what, expected):
    code, out, _ = run("list", what)
    assert code == 0
    assert all(word in out for word in expected)


def test_named_recipes_are_listed_side_by_side():
    named, pretrained, defaults = recipes()
    assert named.columns == ["setting", *RECIPES, "for"]
    rows = {(key, who): values for key, *values, who in named.rows}
    assert len(rows) == len(named.rows) < 65
    assert rows["method.slots", "aggmatch"] == ["2048", "64", "2048"]
    starting = "aggmatch, fixmatch, fixmatch_da, shrinkmatch, flexmatch, freematch, softmatch"
    assert rows["optim.lr", starting] == ["0.03", "0.06", "0.06"]
    assert rows["method.sharpening", "aggmatch on digits"] == ["1.0", "0.1", "0.1"]
    assert rows["optim.lr", f"{starting} on digits"] == ["0.03"] * 3, "not the value of other data sets"
    assert all(len(set(values)) > 1 for (_, who), values in rows.items() if " on " not in who)
    assert pretrained.columns == ["setting", "paper", "frozen", "finetune", "for"]
    assert ["optim.lr", "0.03", "0.03", "0.003", "all methods"] in pretrained.rows
    assert ["cifar100", "aggmatch", "method.slots=256"] in defaults.rows
    assert not any(cell is None for table in recipes() for row in table.rows for cell in row)


@pytest.mark.parametrize("method", ["aggmatch", "fixmatch"])
@pytest.mark.parametrize("data", ["digits", "cifar10", "cifar100", "svhn"])
def test_the_listed_values_are_those_of_a_run(data, method):
    listed: dict[str, list[str]] = {}
    for key, *values, who in recipes()[0].rows:
        methods, _, where = who.partition(" on ")
        if method in methods.split(", ") and where in ("", data):  # rows of a data set come last
            listed[key] = values
    runs = [flatten(resolve({"data.name": data, "method.name": method, "recipe": name}).to_dict()) for name in RECIPES]
    differing = {key for key in runs[0] if key != "recipe" and any(run[key] != runs[0][key] for run in runs)}
    assert differing <= listed.keys()
    assert {key: [written(values[key]) for values in runs] for key in listed} == listed


def test_settings_are_listed_with_the_values_of_a_data_set(run):
    code, out, _ = run("list", "settings", "--data", "cifar100", "--method", "fixmatch")
    assert code == 0
    shown = dict(line.split()[:2] for line in out.splitlines() if line.startswith("  train.") or "model.name" in line)
    assert (shown["train.batch"], shown["model.name"]) == ("48", "wrn-28-8")
