"""The page on reproducing agrees with the program."""

import re
from pathlib import Path

from aggmatch.experiments import reproduce
from aggmatch.experiments.paper import TABLES
from aggmatch.runs.results import Content

PAGE = (Path(__file__).parents[2] / "docs/reproduce.md").read_text()


def test_every_table_is_listed_with_its_number_of_runs(tmp_path):
    listed = dict(re.findall(r"^\| `([\w-]+)` \| .* \| (\d+) \|$", PAGE, flags=re.M))
    assert listed == {name: str(len(reproduce.plan(table, [], tmp_path).runs)) for name, table in TABLES.items()}


def test_every_part_of_a_line_is_explained():
    table = PAGE.split("| in a line | what |")[1]
    assert set(re.findall(r"`(\w+)`", table.split("\n\n")[0])) - {"null"} == set(Content.__annotations__)
