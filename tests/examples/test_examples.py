"""The scripts and the notebook in examples/ run unchanged, with few steps."""

import re
import runpy
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest

import aggmatch

ROOT = Path(__file__).parents[2]
PRINTED = {
    "train_and_predict": r"predicted \d with \d+ %, the digit is \d",
    "own_folder": r"columns\d+\.png: (rows|columns) \(\d+ %\)",
    "own_method": r"test accuracy \d+\.\d %, pseudo labels right \d+\.\d %",
    "own_backbone": r"test accuracy \d+\.\d %",
    "scikit_learn": r"cross-validation, on images with a label: \d+ %, \d+ %",
    "compare_methods": r"aggmatch +neighbours +\d+\.\d  \d+\.\d",
}
"""Script → what a line of its output looks like."""


def test_every_script_is_tested_and_short():
    scripts = {path.stem: path for path in (ROOT / "examples").glob("*.py")}
    assert set(scripts) == set(PRINTED)
    for name, path in scripts.items():
        assert len(path.read_text().splitlines()) < 50, name


@pytest.mark.parametrize("name", PRINTED)
def test_a_script_runs_from_any_folder(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--folds", "1"] if name == "compare_methods" else []
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--steps", "20", "--out", "runs/example", *words])
    runpy.run_path(str(ROOT / f"examples/{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert re.search(PRINTED[name], printed), printed
    assert list(tmp_path.glob("runs/example/**/summary.json"))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of jupyter_client
def test_the_notebook_trains_and_shows_the_report(tmp_path, monkeypatch):
    source = str(Path(aggmatch.__file__).parents[1])
    for name, value in {"PYTHONPATH": source, "OMP_NUM_THREADS": "1", "STEPS": "20", "TMPDIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "examples/digits.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "stored without output"
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (shown,) = notebook.cells[-1].outputs
    assert "iframe srcdoc" in shown["data"]["text/html"]
    (curves,) = (output["data"]["text/html"] for output in notebook.cells[3].outputs)
    assert "step 20 of 20, test accuracy" in curves
    assert "<svg" in curves
