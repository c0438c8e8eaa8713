"""What the README shows must work as it stands there."""

import re
from pathlib import Path

import pytest
import typer.main

from aggmatch.cli import app

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_runs(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)
    assert '"train.steps": 200' in code
    monkeypatch.chdir(tmp_path)
    exec(code.replace('"train.steps": 200', '"train.steps": 20'), {})
    step, accuracy = capsys.readouterr().out.splitlines()
    assert step.startswith("20 ")
    assert 0 < float(accuracy) <= 100


def test_every_command_and_option_exists():
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = [line.split("#")[0].split() for line in README.read_text().splitlines() if "bin/aggmatch " in line]
    assert len(lines) >= 6
    for _, name, *words in lines:
        known = {option for parameter in commands[name].params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", [*sorted(README.parent.glob("docs/**/*.md")), README], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_the_readme_is_short_enough_to_be_read():
    assert len(README.read_text().splitlines()) <= 150
