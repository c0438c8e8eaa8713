import json

import pytest

from aggmatch.config import Layer, flatten, sections
from aggmatch.errors import AggMatchError
from aggmatch.methods import METHODS
from aggmatch.recipes import DATA, METHOD
from aggmatch.settings import RunSettings, resolve, with_split
from aggmatch.validate import InvalidValue


def resolved(**values):
    return resolve([Layer("the test", {key.replace("__", "."): value for key, value in values.items()})])


def test_without_a_word_it_is_aggmatch_on_digits():
    settings = resolved()
    assert (settings.method_name, settings.data.name) == ("aggmatch", "digits")


def test_the_papers_values_are_the_defaults_on_cifar10():
    settings = resolved(data__name="cifar10").to_dict()
    assert settings["method"] == {
        "name": "aggmatch",
        "slots": 2048,
        "subsets": 64,
        "disjoint": "slots",
        "threshold": 0.95,
        "similarity_temperature": 0.05,
        "feature_term": True,
        "class_term": "divergence",
        "class_weight": 0.5,
        "sharpening": 0.5,
        "unlabeled_weight": 1.0,
        "refine": True,
        "confidence": "weighting",
        "vote_entropy": 1.0,
        "labeled_slots": "prediction",
        "momentum_encoder": True,
        "class_balanced": True,
    }
    assert settings["model"] == {"name": "wrn-28-2"}
    assert settings["optim"]["average"] == 0.999
    assert (settings["train"]["batch"], settings["train"]["unlabeled_ratio"], settings["train"]["steps"]) == (
        64,
        7,
        2**20,
    )
    wide = resolved(data__name="cifar100").to_dict()
    assert (wide["model"]["name"], wide["train"]["batch"], wide["method"]["slots"]) == ("wrn-28-8", 48, 256)
    assert wide["optim"]["weight_decay"] == 1e-3


def test_the_command_line_beats_a_file_which_beats_the_recipe():
    file = Layer("run.toml", {"train.steps": 5, "train.batch": 3})
    settings = resolve([file, Layer("--set train.steps=7", {"train.steps": 7})])
    assert (settings.train.steps, settings.train.batch) == (7, 3)
    assert settings.model.name == DATA["digits"]["model.name"]


@pytest.mark.parametrize("method", METHODS.names())
@pytest.mark.parametrize("data", DATA)
def test_every_recipe_resolves_and_survives_json(data, method):
    settings = resolved(data__name=data, method__name=method)
    stored = json.loads(json.dumps(settings.to_dict()))
    assert resolve([Layer("config.json", flatten(stored))]) == settings


def test_every_recipe_is_of_a_known_method():
    assert {method for _, method in METHOD} <= set(METHODS.names())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"method__tau": 1}, "Unknown setting 'method.tau' of aggmatch. Known: method.class_balanced"),
        ({"optim__momentun": 1}, "Unknown setting 'optim.momentun'. Did you mean 'optim.momentum'?"),
        ({"trian__steps": 1}, "Unknown setting 'trian'. Did you mean 'train'?"),
        ({"train__steps": 0}, "train.steps must be in [1, 16777216], got 0 (from the test)."),
        ({"method__threshold": 1.5}, "method.threshold must be in [0, 1], got 1.5 (from the test)."),
        ({"method__name": 3}, "method.name must be a string, got 3 (from the test)."),
        ({"views__ops": ["spin"]}, "views.ops must be among"),
    ],
)
def test_a_wrong_setting_is_explained(values, message):
    with pytest.raises(AggMatchError) as caught:
        resolved(**values)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("section", "value", "meant"),
    [
        ("method", "fixmatch", "method.name"),
        ("data", "cifar10", "data.name"),
        ("model", "wrn-28-2", "model.name"),
        ("optim", 0.1, "optim.optimizer"),
        ("views.crops", None, "views.crops.large_area"),
        ("train", [1], "train.steps"),
    ],
)
def test_a_value_in_the_place_of_a_section_is_answered_with_a_setting_of_it(section, value, meant):
    with pytest.raises(InvalidValue) as caught:
        resolve([Layer("run.toml", {section: value})])
    assert str(caught.value) == (
        f"{section} is a section and takes no value of its own, got {value!r}; set what is in it, such as {meant} "
        f"(from run.toml)."
    )


@pytest.mark.parametrize("section", [key for key, _ in sections(RunSettings)])
def test_the_value_is_at_fault_whatever_is_set_in_the_section_later(section):
    layers = [Layer("run.toml", {section: 1}), Layer("--set", {f"{section}.name": "digits"})]
    with pytest.raises(InvalidValue, match=rf"^{section} is a section .* \(from run\.toml\)\.$"):
        resolve(layers)


def test_a_section_may_be_given_whole_and_keeps_the_recipe():
    assert resolved(method={"name": "fixmatch", "threshold": 0.5}) == resolved(
        method__name="fixmatch", method__threshold=0.5
    )
    assert resolved(train={"batch": 20}) == resolved(train__batch=20)


def test_the_field_that_holds_the_name_of_the_method_is_no_setting():
    with pytest.raises(InvalidValue, match=r"method_name does not exist; the method is chosen by method\.name"):
        resolved(method_name="fixmatch")


def test_a_mapping_is_one_layer():
    assert resolve({"data.name": "digits", "optim": {"lr": 0.5}}) == resolve(
        [Layer("", {"data.name": "digits", "optim.lr": 0.5})]
    )
    with pytest.raises(AggMatchError, match=r"^train\.steps must be in \[1, 16777216\], got 0\.$"):
        resolve({"train.steps": 0})


@pytest.fixture
def split(tmp_path):
    """A split of 20 labels and fold 2, as a layer."""
    content = {"format": 1, "images": 1437, "labeled": list(range(20)), "fold": 2}
    (tmp_path / "split.json").write_text(json.dumps(content))
    return Layer("--split s", {"data.split": str(tmp_path / "split.json")})


@pytest.mark.parametrize("chosen", [{}, {"data.labels": 20}, {"data.labels": None, "data.fold": 2}])
def test_a_reused_split_decides_labels_and_fold(split, chosen):
    data = resolve(with_split([split, Layer("the test", chosen)])).data
    assert (data.labels, data.fold) == (20, 2)


@pytest.mark.parametrize(("key", "value", "own"), [("data.labels", 10, 20), ("data.fold", 0, 2)])
def test_labels_and_fold_that_are_not_those_of_the_split_are_refused(split, key, value, own):
    with pytest.raises(InvalidValue) as error:
        with_split([Layer("the file", {key: value}), split])
    path = split.values["data.split"]
    assert str(error.value) == f"{key} must be left out or {own}, as in the split {path}, got {value} (from the file)."


def test_without_a_split_the_layers_stay_as_they_are():
    layers = [Layer("the test", {"data.labels": 20, "data.split": None})]
    assert with_split(layers) == layers
