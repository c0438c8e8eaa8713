"""The command that compares methods."""

import json


def test_methods_are_compared_and_the_table_is_written(run, tmp_path):
    words = "compare digits --labels 20 --folds 2 --steps 4 --methods supervised,pi_model --out c --quiet"
    code, out, err = run(*words.split(), "--set", "model.name=small-4", "--set", "train.batch=10")
    assert (code, err) == (0, "")
    assert "digits, 20 labels, 4 steps" in out
    assert "supervised" in out
    assert "pi_model" in out
    assert sorted(path.suffix for path in (tmp_path / "c").glob("comparison.*")) == [".csv", ".json", ".md"]


def test_the_help_does_not_promise_a_runs_own_configuration(run):
    code, out, _ = run("compare", "--help")
    assert code == 0
    text = " ".join(out.split())
    assert "TOML file, without method, fold and split" in text
    assert "config.json" not in text


def test_one_labelled_set_is_not_passed_off_as_folds(run, tmp_path):
    words = "compare digits --methods supervised --folds 2 --steps 4 --set data.split=x.json"
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    assert err == (
        "Error: data.split cannot be set for a comparison, whose folds would then have the same labels "
        "(from --set data.split=x.json). Train on it with: aggmatch train --split FILE\n"
    )
    assert not list(tmp_path.iterdir())


def test_a_run_that_fails_leaves_the_others_their_table(run, tmp_path):
    (tmp_path / "c/pi_model/fold0").mkdir(parents=True)
    (tmp_path / "c/pi_model/fold0/something").touch()
    words = "compare digits --folds 2 --steps 4 --methods pi_model,supervised --out c --quiet"
    code, out, err = run(*words.split(), "--set", "model.name=small-4", "--set", "train.batch=10")
    assert code == 2
    assert "pi_model fold 0 failed: c/pi_model/fold0 is not empty" in err
    assert err.endswith("Error: 1 of 4 runs failed, see above. The same command tries them again.\n")
    counts = {row["method"]: row["n"] for row in json.loads((tmp_path / "c/comparison.json").read_text())}
    assert counts == {"supervised": 2, "pi_model": 1}
    assert all(method in out for method in counts)


def test_a_method_that_does_not_fit_is_left_out_unless_it_was_named(run, tmp_path, monkeypatch):
    monkeypatch.setattr("aggmatch.methods.known_methods", lambda: ["paws", "supervised"])
    text = "compare digits --folds 1 --steps 4 --out c --quiet --set model.name=small-4 --set train.batch=15"
    words = text.split()
    code, _, err = run(*words, "--methods", "supervised,paws")
    assert code == 2
    assert "Nothing was started, as paws could not be trained: train.batch must be a multiple of 10" in err
    assert not list(tmp_path.iterdir())
    code, out, err = run(*words)
    assert code == 0
    assert err.startswith("Left out, as it cannot be trained here: paws. train.batch must be a multiple of 10")
    assert "supervised" in out
    assert not (tmp_path / "c/paws").exists()
