"""The command that compares methods."""

import json

from tests.data.photos import paint

from aggmatch.methods import METHODS


def test_methods_are_compared_and_the_table_is_written(run, tmp_path):
    words = "compare digits --labels 20 --folds 2 --steps 4 --methods supervised,pi_model --out c --quiet"
    code, out, err = run(*words.split(), "--set", "model.name=small-4", "--set", "train.batch=10")
    assert (code, err) == (0, "")
    assert "digits, 20 labels, 4 steps" in out
    assert "supervised" in out
    assert "pi_model" in out
    assert sorted(path.suffix for path in (tmp_path / "c").glob("comparison.*")) == [".csv", ".json", ".md"]


def test_the_help_does_not_offer_the_configuration_of_a_run(run):
    code, out, _ = run("compare", "--help")
    assert code == 0
    text = " ".join(out.split())
    assert "TOML file, without method, fold and split" in text
    assert "config.json" not in text


def test_one_labelled_set_cannot_represent_several_folds(run, tmp_path):
    words = "compare digits --methods supervised --folds 2 --steps 4 --set data.split=x.json"
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert err.startswith("Error: data.split ")
    assert "aggmatch train --split FILE" in err
    assert not list(tmp_path.iterdir())


def test_if_a_run_fails_the_table_shows_the_others(run, tmp_path):
    (tmp_path / "c/pi_model/fold0").mkdir(parents=True)
    (tmp_path / "c/pi_model/fold0/something").touch()
    words = "compare digits --folds 2 --steps 4 --methods pi_model,supervised --out c --quiet"
    code, out, err = run(*words.split(), "--set", "model.name=small-4", "--set", "train.batch=10")
    assert code == 2
    assert "pi_model fold 0 failed: c/pi_model/fold0 is not empty" in err
    assert "Error: 1 of 4 runs failed" in err
    counts = {row["method"]: row["n"] for row in json.loads((tmp_path / "c/comparison.json").read_text())}
    assert counts == {"supervised": 2, "pi_model": 1}
    assert all(method in out for method in counts)


def test_a_method_that_the_data_do_not_suit_is_left_out_unless_it_was_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr(METHODS, "names", lambda: ["paws", "supervised"])
    text = "compare digits --folds 1 --steps 4 --out c --quiet --set model.name=small-4 --set train.batch=15"
    words = text.split()
    code, _, err = run(*words, "--methods", "supervised,paws")
    assert code == 2
    assert "Nothing was started, because paws cannot be trained: train.batch" in err
    assert not list(tmp_path.iterdir())
    code, out, err = run(*words)
    assert code == 0
    assert err.startswith("Left out, because it cannot be trained here: paws. train.batch")
    assert "supervised" in out
    assert not (tmp_path / "c/paws").exists()


def test_of_own_images_the_command_first_says_what_it_read(run, tmp_path):
    for k in range(4):
        for name, shade in (("hat", 0), ("dress", 100), ("unlabeled", 200)):
            paint(tmp_path / f"photos/{name}/{k}.png", (shade + k, 30, 30))
    words = "compare photos --folds 2 --steps 2 --methods supervised --out c --set model.name=small-4"
    code, out, err = run(*words.split(), "--set", "data.side=8", "--set", "train.batch=4")
    assert code == 0
    assert out.startswith("2 classes: dress 3, hat 3; 4 unlabelled; 2 test.")
    assert "All folds have the same labels" in out
    assert "Warning: 2 test images" in err
