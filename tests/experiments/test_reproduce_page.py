"""What the page on reproducing shows must be true of the program."""

import re
from pathlib import Path

import typer.main

from aggmatch.cli import app
from aggmatch.experiments import reproduce
from aggmatch.experiments.paper import TABLES, find_table
from aggmatch.experiments.results import Result

PAGE = (Path(__file__).parents[2] / "docs/reproduce.md").read_text()
COMMANDS = [line.split("#")[0].split()[1:] for line in PAGE.splitlines() if line.startswith("aggmatch ")]


def test_every_command_is_understood():
    assert len(COMMANDS) >= 8
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, *words in COMMANDS:
        given = commands[name].make_context(name, words).params
        if name == "reproduce":
            wanted = {"method.name": given["methods"], "data.name": given["data"], "data.labels": given["labels"]}
            values = {key: text.split(",") for key, text in wanted.items() if text}
            if "data.labels" in values:
                values["data.labels"] = [int(number) for number in values["data.labels"]]
            assert reproduce.narrow(find_table(given["table"]), values).cells


def test_every_table_is_listed_with_its_number_of_runs(tmp_path):
    listed = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (\d+) \|$", PAGE, flags=re.M))
    assert listed == {name: str(len(reproduce.plan(table, [], tmp_path).runs)) for name, table in TABLES.items()}


def test_every_part_of_a_line_is_explained():
    table = PAGE.split("| in a line | what |")[1]
    assert set(re.findall(r"`(\w+)`", table.split("\n\n")[0])) - {"null"} == set(Result.__dataclass_fields__)
