import json

import pytest
from tests.conftest import dotted

from aggmatch.config import Layer, flatten, sections
from aggmatch.errors import AggMatchError
from aggmatch.methods import METHODS
from aggmatch.recipes import DATA, METHOD
from aggmatch.settings import RunSettings, parts_named, resolve, with_split
from aggmatch.validate import InvalidValue


def resolved(**values):
    return resolve([Layer("the test", dotted(values))])


def test_the_default_is_aggmatch_on_digits():
    settings = resolved()
    assert (settings.method_name, settings.data.name) == ("aggmatch", "digits")


def test_the_recipe_paper_has_the_values_of_the_paper():
    settings = resolved(data__name="cifar10", recipe="paper").to_dict()
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
        "sure_only": False,
        "shrinking_weight": 0.0,
        "labeled_slots": "prediction",
        "momentum_encoder": True,
        "class_balanced": True,
        "alignment": False,
        "alignment_target": "uniform",
        "alignment_decay": 0.97,
        "alignment_steps": 0,
        "labeled_views": "weak",
        "rotation_weight": 0.0,
        "rotated": 256,
        "rotation_steps": 0,
        "warmup": 0,
        "contrast_steps": 0,
        "contrast_temperature": 0.2,
        "propagation_steps": 0,
        "propagations": 16,
        "propagated": [0.3, 0.75],
        "propagated_by_class": 0.0,
        "neighbours": 10,
    }
    assert settings["recipe"] == "paper"
    assert settings["model"] == {"name": "wrn-28-2", "weights": None, "side": None}
    assert settings["train"]["backbone"] == "scratch"
    assert settings["optim"]["average"] == 0.999
    assert (settings["train"]["batch"], settings["train"]["unlabeled_ratio"], settings["train"]["steps"]) == (
        64,
        7,
        2**20,
    )
    wide = resolved(data__name="cifar100", recipe="paper").to_dict()
    assert (wide["model"]["name"], wide["train"]["batch"], wide["method"]["slots"]) == ("wrn-28-8", 48, 256)
    assert wide["optim"]["weight_decay"] == 1e-3


def test_the_command_line_wins_over_a_file_and_a_file_over_the_recipe():
    file = Layer("run.toml", {"train.steps": 5, "train.batch": 3})
    settings = resolve([file, Layer("--set train.steps=7", {"train.steps": 7})])
    assert (settings.train.steps, settings.train.batch) == (7, 3)
    assert settings.model.name == DATA["digits"]["model.name"]


@pytest.mark.parametrize("method", METHODS.names())
@pytest.mark.parametrize("data", DATA)
def test_every_recipe_resolves_and_survives_a_round_trip_through_json(data, method):
    settings = resolved(data__name=data, method__name=method)
    stored = json.loads(json.dumps(settings.to_dict()))
    assert resolve([Layer("config.json", flatten(stored))]) == settings


def test_every_recipe_belongs_to_a_known_method():
    assert {method for _, method in METHOD} <= set(METHODS.names())


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"method__tau": 1}, ["'method.tau' of aggmatch", "method.class_balanced"]),
        ({"optim__momentun": 1}, ["'optim.momentun'", "'optim.momentum'?"]),
        ({"trian__steps": 1}, ["'trian'", "'train'?"]),
        ({"train__steps": 0}, ["train.steps ", "[1, 16777216]", "got 0", "(from the test)"]),
        ({"method__threshold": 1.5}, ["method.threshold ", "[0, 1]", "got 1.5", "(from the test)"]),
        ({"method__name": 3}, ["method.name ", "a string", "got 3", "(from the test)"]),
        ({"views__ops": ["spin"]}, ["views.ops ", "identity", "'spin'"]),
    ],
)
def test_the_error_of_a_wrong_setting_names_it_and_what_is_allowed(values, words):
    with pytest.raises(AggMatchError) as caught:
        resolved(**values)
    assert [word for word in words if word not in str(caught.value)] == []


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
def test_the_error_of_a_value_for_a_section_names_a_setting_of_it(section, value, meant):
    with pytest.raises(InvalidValue) as caught:
        resolve([Layer("run.toml", {section: value})])
    assert caught.value.key == section
    assert str(caught.value).endswith(f"got {value!r}; set one of its settings, such as {meant} (from run.toml).")


@pytest.mark.parametrize("section", [key for key, _ in sections(RunSettings)])
def test_a_value_for_a_section_is_an_error_also_if_a_later_layer_sets_the_section(section):
    layers = [Layer("run.toml", {section: 1}), Layer("--set", {f"{section}.name": "digits"})]
    with pytest.raises(InvalidValue, match=rf"^{section} is a section .* \(from run\.toml\)\.$"):
        resolve(layers)


def test_a_section_may_be_a_nested_mapping_and_keeps_the_recipe():
    assert resolved(method={"name": "fixmatch", "threshold": 0.5}) == resolved(
        method__name="fixmatch", method__threshold=0.5
    )
    assert resolved(train={"batch": 20}) == resolved(train__batch=20)


def test_the_method_is_not_chosen_by_the_name_of_its_field():
    with pytest.raises(InvalidValue, match=r"^method_name .*method\.name"):
        resolved(method_name="fixmatch")


def test_a_mapping_is_one_layer():
    assert resolve({"data.name": "digits", "optim": {"lr": 0.5}}) == resolve(
        [Layer("", {"data.name": "digits", "optim.lr": 0.5})]
    )
    with pytest.raises(AggMatchError, match=r"^train\.steps .*got 0\.$"):
        resolve({"train.steps": 0})


@pytest.fixture
def split(tmp_path):
    """A layer that names a split with 20 labels and fold 2."""
    content = {"format": 1, "data": "digits", "classes": 10, "fold": 2, "images": 1437}
    content |= {"labeled": list(range(20)), "labels": [0] * 20, "unlabeled": "all"}
    (tmp_path / "split.json").write_text(json.dumps(content))
    return Layer("--split s", {"data.split": str(tmp_path / "split.json")})


@pytest.mark.parametrize("chosen", [{}, {"data.labels": 20}, {"data.labels": None, "data.fold": 2}])
def test_a_reused_split_sets_labels_and_fold(split, chosen):
    data = resolve(with_split([split, Layer("the test", chosen)])).data
    assert (data.labels, data.fold) == (20, 2)


@pytest.mark.parametrize(("key", "value", "own"), [("data.labels", 10, 20), ("data.fold", 0, 2)])
def test_other_labels_or_another_fold_than_the_split_is_an_error(split, key, value, own):
    with pytest.raises(InvalidValue, match=rf"^{key} .*{own}.*split\.json, got {value} \(from the file\)\.$"):
        with_split([Layer("the file", {key: value}), split])


def test_without_a_split_the_layers_do_not_change():
    layers = [Layer("the test", {"data.labels": 20, "data.split": None})]
    assert with_split(layers) == layers


def test_paths_of_code_files_become_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = resolve({"model.name": "my.py:Net", "data.name": "./my.py:DATA", "views.strong": "module:view"})
    assert settings.model.name == f"{tmp_path / 'my.py'}:Net"
    assert settings.data.name == f"{tmp_path / 'my.py'}:DATA"
    assert settings.views.strong == "module:view"
    assert parts_named(settings.to_dict()) == [
        "aggmatch",
        settings.data.name,
        settings.model.name,
        "weak",
        "module:view",
    ]


def test_a_named_recipe_changes_the_defaults_of_its_methods_alone():
    paper, cold = (resolve({"data.name": "cifar10", "recipe": name}) for name in ("paper", "cold-start"))
    short = resolve({"data.name": "cifar10", "train.steps": 20_000})
    assert short == resolve({"data.name": "cifar10", "train.steps": 20_000, "recipe": "cold-start"})
    assert (paper.method.to_dict()["warmup"], cold.method.to_dict()["warmup"]) == (0, 1500)
    assert (paper.optim.weight_decay, cold.optim.weight_decay) == (5e-4, 1e-3)
    assert (paper.optim.lr, cold.optim.lr) == (0.03, 0.06)
    assert (paper.optim.final, cold.optim.final) == (None, 0)
    assert (paper.train.batchnorm_memory, cold.train.batchnorm_memory) == (None, 0.01)
    with pytest.raises(InvalidValue, match="recipe must be paper for uda"):
        resolve({"data.name": "cifar10", "method.name": "uda", "recipe": "cold-start"})


@pytest.mark.parametrize("use", ["frozen", "finetune"])
def test_a_recipe_for_pretrained_backbones_and_their_use_name_each_other(use):
    by_recipe = resolve({"data.name": "cifar10", "recipe": use})
    assert by_recipe == resolve({"data.name": "cifar10", "train.backbone": use})
    assert (by_recipe.recipe, by_recipe.train.backbone) == (use, use)


def test_settings_win_over_a_named_recipe():
    settings = resolve({"data.name": "cifar10", "recipe": "cold-start", "method.warmup": 7, "optim.weight_decay": 0.5})
    assert (settings.method.to_dict()["warmup"], settings.optim.weight_decay) == (7, 0.5)


@pytest.mark.parametrize("method", ["aggmatch", "fixmatch", "fixmatch_da"])
def test_on_digits_a_named_recipe_fits_the_number_of_steps(method):
    settings = resolve({"data.name": "digits", "method.name": method, "recipe": "cold-start"})
    assert settings.method.to_dict()["warmup"] < settings.train.steps / 5
    assert settings.optim == resolve({"data.name": "digits", "method.name": method, "recipe": "paper"}).optim


def test_the_cold_start_rotates_every_unlabelled_image_of_a_step():
    settings = resolve({"data.name": "cifar10", "recipe": "cold-start"})
    assert settings.method.to_dict()["rotated"] == settings.train.batch * settings.train.unlabeled_ratio


def test_settings_of_the_papers_for_one_data_set():
    freematch = resolve({"data.name": "svhn", "method.name": "freematch"}).method.to_dict()
    names = ("warmup", "lowest_threshold", "highest_threshold")
    assert [freematch[name] for name in names] == [2048, 0.9, 0.95]
    comatch = {data: resolve({"data.name": data, "method.name": "comatch"}).method.to_dict() for data in DATA}
    assert {data: values["contrast_weight"] for data, values in comatch.items()} == dict.fromkeys(DATA, 1) | {
        "stl10": 5
    }


def test_a_short_run_has_a_short_warmup():
    settings = resolve({"data.name": "svhn", "method.name": "freematch", "train.steps": 1000})
    assert settings.method.to_dict()["warmup"] == 250
    chosen = {"data.name": "svhn", "method.name": "freematch", "train.steps": 1000, "method.warmup": 900}
    assert resolve(chosen).method.to_dict()["warmup"] == 900


def test_an_unknown_recipe_gets_the_closest_match():
    with pytest.raises(AggMatchError, match="Did you mean 'cold-start'"):
        resolve({"recipe": "coldstart"})


def test_a_configuration_from_before_recipes_is_the_papers():
    values = resolve({"data.name": "cifar10"}).to_dict()
    del values["recipe"]
    assert resolve([Layer("stored", values)], recipes=False).recipe == "paper"


def test_the_default_recipe_is_the_papers_for_other_methods_and_for_own_images_from_scratch(tmp_path):
    assert resolve({"data.name": "cifar10", "method.name": "fixmatch"}).recipe == "paper"
    assert resolve({"data.name": str(tmp_path), "train.backbone": "scratch"}).recipe == "paper"


@pytest.mark.parametrize(("steps", "recipe"), [(1, "cold-start"), (49_999, "cold-start"), (50_000, "neighbours")])
def test_a_long_run_on_cifar10_has_a_long_start_by_default(steps, recipe):
    assert resolved(data__name="cifar10", train__steps=steps).recipe == recipe
    assert resolved(data__name="svhn", train__steps=steps).recipe == "cold-start"
    assert resolved(data__name="digits", train__steps=steps).recipe == "neighbours"


def test_a_run_without_chosen_steps_has_the_default_recipe_of_its_length():
    settings = resolve({"data.name": "cifar10"})
    assert settings.recipe == resolve({"data.name": "cifar10", "train.steps": settings.train.steps}).recipe


@pytest.mark.parametrize(
    ("steps", "warmup", "rotation", "alignment"),
    [(100, 25, 50, 33), (6000, 1500, 3000, 2000), (2**20, 1500, 10_000, 2000)],
)
def test_the_first_steps_of_a_recipe_take_a_part_of_a_short_run(steps, warmup, rotation, alignment):
    method = resolve({"data.name": "cifar10", "recipe": "cold-start", "train.steps": steps}).method.to_dict()
    assert [method[key] for key in ("warmup", "rotation_steps", "alignment_steps")] == [warmup, rotation, alignment]


def test_a_wrong_number_of_steps_is_named_and_not_what_follows_from_it():
    with pytest.raises(InvalidValue, match=r"train\.steps"):
        resolve({"data.name": "cifar10", "train.steps": -5})


@pytest.mark.parametrize("steps", [1, 7, 19, 20, 39, 50, 333, 1001, 20_000, 99_999, 2**20])
@pytest.mark.parametrize("data", ["digits", "cifar10"])
def test_every_run_has_twenty_log_lines_and_evaluations_or_one_for_each_step(data, steps):
    train = resolved(data__name=data, train__steps=steps).train
    wanted = min(steps, 20)
    assert steps // train.log_every >= wanted
    assert steps // train.evaluate_every >= wanted
    assert train.evaluate_every % train.log_every == 0, "an evaluation is also a log step"


def test_a_cadence_that_somebody_chose_is_kept():
    train = resolved(train__steps=40, train__log_every=30, train__evaluate_every=500).train
    assert (train.log_every, train.evaluate_every) == (30, 500)


def test_a_recipe_keeps_the_cadence_that_is_made_for_its_length():
    assert resolved(data__name="digits").train.evaluate_every == DATA["digits"]["train.evaluate_every"]
    assert resolved(data__name="digits").train.log_every == DATA["digits"]["train.log_every"]
    assert resolved(data__name="digits", train__steps=500).train.evaluate_every == 20


def test_a_planned_run_does_not_ask_a_stored_one_for_its_cadence():
    stored, planned = resolved(train__steps=40, train__log_every=30), resolved(train__steps=40)
    settings = resolve([Layer("the folder", stored.to_dict()), planned.layer("the plan")])
    assert settings == stored


@pytest.mark.parametrize("key", ["foo", "methodname"])
def test_an_unknown_setting_is_not_answered_with_a_field_that_no_key_sets(key):
    with pytest.raises(AggMatchError, match=key) as error:
        resolve({key: 1})
    assert "method_name" not in str(error.value)
