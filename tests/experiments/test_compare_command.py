"""The command, from its words to its table."""

import sys

import pytest

from aggmatch import cli, console


def test_compare_prints_a_table_and_writes_it(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(console.stdout, "width", 200)
    words = "compare digits --labels 20 --folds 2 --steps 4 --methods supervised,pi_model --out c --quiet"
    quick = ["--set", "model.name=small-4", "--set", "train.batch=10"]
    monkeypatch.setattr(sys, "argv", ["aggmatch", *words.split(), *quick])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    out = capsys.readouterr().out
    assert "digits, 20 labels, 4 steps" in out
    assert "supervised" in out
    assert "pi_model" in out
    assert sorted(path.suffix for path in (tmp_path / "c").glob("comparison.*")) == [".csv", ".json", ".md"]
