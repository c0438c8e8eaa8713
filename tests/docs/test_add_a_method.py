"""The example of the guide, taken from the page and used as a reader would."""

import json
import sys
from pathlib import Path

import pytest

from aggmatch import cli


def test_the_example_trains_resumes_and_is_logged(margin: Path, monkeypatch):
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as an installed command has it
    words = ["train", "digits", "--method", "margin:MarginMatch", "--set", "method.momentum=0.9"]
    quick = ["--out", "run", "--steps", "8", "--set", "model.name=small-4", "--quiet"]
    monkeypatch.setattr(sys, "argv", ["aggmatch", *words, *quick])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    summary = json.loads((margin / "run/summary.json").read_text())
    assert summary["method"] == "margin:MarginMatch"
    assert 0 < summary["pseudo_coverage"] < 1
    monkeypatch.setattr(sys, "argv", ["aggmatch", "train", "--resume", "--out", "run"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code


def test_a_wrong_setting_of_the_example_is_refused(margin: Path, monkeypatch, capsys):
    monkeypatch.setattr(
        sys, "argv", ["aggmatch", "train", "--method", "margin:MarginMatch", "--set", "method.momentum=2"]
    )
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 2
    assert "method.momentum must be in [0, 1], got 2.0" in capsys.readouterr().err
