"""Commands, settings, links and paths on every page exist in this version."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from aggmatch.bench.report import Growth
from aggmatch.cli import app
from aggmatch.config import Layer, describe, read_assignment, read_file
from aggmatch.data import SOURCES
from aggmatch.experiments import compare, reproduce
from aggmatch.experiments.paper import find_table
from aggmatch.methods import METHODS, load_method
from aggmatch.registry import is_code
from aggmatch.settings import RunSettings, resolve

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    ROOT / "results/README.md",
    ROOT / "benchmarks/README.md",
]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
SETTINGS = {setting.key for setting in describe(RunSettings)} | {"method.name"}
SETTINGS |= {s.key for name in METHODS.names() for s in describe(load_method(name).config_type, "method.")}
SECTIONS = "data|views|model|method|optim|train|runtime"

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str = "") -> list[str]:
    """Fenced blocks in a language; those without one hold commands and their output."""
    found = re.findall(r"^```([\w{}-]*)\n(.*?)^```$", page.read_text(), flags=re.S | re.M)
    return [content for kind, content in found if kind == language]


def command_lines(page: Path) -> Iterator[list[str]]:
    """Words of every line of a block that calls aggmatch, without the comment behind them; output is indented."""
    for block in blocks(page):
        for line in re.findall(r"^(?:\S*/)?aggmatch (.*)$", block.replace("\\\n", " "), flags=re.M):
            yield shlex.split(line, comments=True)


def code_spans(page: Path) -> list[str]:
    """Code within sentences and tables."""
    return re.findall(r"(?<!`)`([^`\n]+)`(?!`)", re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M))


def options(name: str) -> set[str]:
    """Options of a command."""
    return {option for parameter in COMMANDS[name].params for option in parameter.opts}


def listed(text: str | None) -> list[str]:
    """The names in a comma-separated text."""
    return text.split(",") if text else []


def plan(command: str, words: dict[str, Any]) -> None:
    """Put together all settings that the arguments of a command ask for."""
    layers = [read_assignment(text) for text in words.get("set_") or []]
    if command == "reproduce":
        wanted: dict[str, list[Any]] = {
            "method.name": listed(words["methods"]),
            "data.name": listed(words["data"]),
            "data.labels": [int(number) for number in listed(words["labels"])],
        }
        table = reproduce.narrow(find_table(words["table"]), {key: values for key, values in wanted.items() if values})
        reproduce.plan(table, layers, Path("runs"))
        return
    data = words.get("data") or "digits"
    assert data in SOURCES or is_code(data) or data in ("flowers", "photos")  # folders of images
    layers.insert(0, Layer("the page", {"data.name": data}))
    if command == "compare":
        compare.plan(listed(words["methods"]) or METHODS.names(), words["folds"], layers)
        return
    grown = [Growth.parse(text) for text in words.get("grow") or []]
    layers += [Layer("--grow", {growth.key: value}) for growth in grown for value in growth.values]
    for method in listed(words.get("method")) or ["aggmatch"]:
        resolve([*layers, Layer("--method", {"method.name": method})])


@every_page
def test_the_commands_of_a_block_parse_and_their_settings_resolve(page, guides):
    for name, *words in command_lines(page):
        plan(name, COMMANDS[name].make_context(name, words).params)


def test_the_blocks_with_commands_are_found():
    found = {page.relative_to(ROOT).as_posix(): len(list(command_lines(page))) for page in PAGES}
    assert found["README.md"] >= 10
    assert found["docs/reproduce.md"] >= 8
    assert {page for page, count in found.items() if count} >= {
        "docs/analysis.md",
        "docs/extending/backbone.md",
        "docs/extending/data-set.md",
        "docs/extending/figure.md",
        "docs/extending/method.md",
        "docs/extending/view.md",
        "docs/own-images.md",
        "docs/performance.md",
        "docs/quick-start.md",
        "docs/report.md",
        "docs/safety.md",
        "docs/settings.md",
        "results/README.md",
        "benchmarks/README.md",
    }


@every_page
def test_commands_and_options_within_sentences_exist(page):
    for span in code_spans(page):
        program, *words = span.split()
        if program == "aggmatch" and words:
            assert {word for word in words[1:] if word.startswith("--")} <= options(words[0]), span
        elif program.startswith("--"):
            assert any(program in options(name) for name in COMMANDS), span


@every_page
def test_settings_within_sentences_exist_and_their_values_resolve(page):
    for span in code_spans(page):
        text = span.removeprefix("--set ")
        if re.fullmatch(rf"({SECTIONS})\.[a-z_.]+", text) and text != "model.safetensors":  # a file of a run
            assert text in SETTINGS
        elif re.match(rf"({SECTIONS})\.[a-z_.]+=", text):
            resolve([read_assignment(word) for word in shlex.split(text)])


@every_page
def test_a_configuration_file_on_a_page_resolves(page, tmp_path):
    for block in blocks(page, "toml"):
        if "entry-points" in block:  # of a package, tested with the guides
            continue
        (tmp_path / "run.toml").write_text(block)
        resolve([read_file(tmp_path / "run.toml")])


@every_page
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@every_page
def test_links_to_headings_lead_to_one(page):
    for target, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        headings = re.findall(r"^#+ (.*)$", (page.parent / target if target else page).read_text(), flags=re.M)
        assert anchor in {re.sub(r"[^\w\s-]", "", heading.lower()).replace(" ", "-") for heading in headings}, anchor


@every_page
def test_files_named_within_sentences_exist(page):
    for span in code_spans(page):
        if re.fullmatch(r"([a-z_]+/)+[a-z_]+\.(py|css|html)|([a-z_]+/){2,}", span):
            assert any((place / span).exists() for place in (ROOT, ROOT / "src/aggmatch", page.parent)), span


def test_commands_for_the_figures_of_the_paper_have_its_recipe():
    words = [line for line in command_lines(ROOT / "docs/analysis.md") if line[0] == "train"]
    assert len(words) == 2
    assert all(line[line.index("--recipe") + 1] == "paper" for line in words)


def test_the_page_on_settings_has_every_data_set_with_its_labels():
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]+ \| (\d+) \|$", (ROOT / "docs/settings.md").read_text(), flags=re.M)
    built_in = [name for name, place in SOURCES.origins() if place == "aggmatch"]
    assert {name: int(labels) for name, labels in rows} == {
        name: resolve({"data.name": name}).data.labels for name in built_in
    }
