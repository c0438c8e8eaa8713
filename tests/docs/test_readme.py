"""The code on the README works exactly as shown."""

import re
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert '"train.steps": 200' in code
    monkeypatch.chdir(tmp_path)
    exec(code.replace('"train.steps": 200', '"train.steps": 20'), {})
    *steps, accuracy, predicted = capsys.readouterr().out.splitlines()
    assert len(steps) == 20
    assert steps[-1].startswith("20 ")
    assert 0 < float(accuracy) <= 100
    assert re.fullmatch(r"tensor\(\[(\d, ){4}\d\]\)", predicted)


def test_the_readme_is_short_enough_to_be_read():
    assert len(README.read_text().splitlines()) <= 150
