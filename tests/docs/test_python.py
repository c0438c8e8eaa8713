"""The examples of docs/python.md run as they are printed, with fewer images and steps."""

import re
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from sklearn import datasets

import aggmatch

PAGE = (Path(__file__).parents[2] / "docs/python.md").read_text()


def test_the_examples_run_one_after_the_other(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    digits = datasets.load_digits()
    few = np.r_[0:150, -150:0]
    small: Any = type(digits)(images=digits.images[few], target=digits.target[few])
    monkeypatch.setattr(datasets, "load_digits", lambda: small)
    *blocks, notebook = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    names: dict[str, Any] = {}
    for block in blocks:
        block = re.sub(r'(steps"?[=:] ?)200', r"\g<1>2", block).replace("[100, 200]", "[1, 2]")
        exec(block.replace("images[1000:], digits.target[1000:]", "images[200:], digits.target[200:]"), names)
    assert names["pipeline"].predict(names["rows"]).shape == (300,)
    assert names["search"].best_params_["steps"] in (1, 2)
    assert names["probs"].shape == (2, 10)
    assert len(names["names"]) == 2
    assert "step 2/2" in capsys.readouterr().out
    assert set(re.findall(r"aggmatch\.(\w+)\(", notebook)) <= set(aggmatch.__all__)


def test_the_table_lists_every_parameter():
    table = PAGE.split("The parameters:")[1].split("## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", table, flags=re.M) == list(signature(aggmatch.AggMatchClassifier).parameters)
