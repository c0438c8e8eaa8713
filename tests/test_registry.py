"""Open registries: parts of this package, of files, of modules and of installed packages."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from aggmatch.errors import AggMatchError
from aggmatch.methods import METHODS, load_method
from aggmatch.models import MODELS, build_network
from aggmatch.registry import Origin, Registry, absolute, is_code, refuse_code, short_name

COLOURS: Registry[Any] = Registry(
    "colour",
    "colours",
    builtin=lambda: {"red": "colorsys:rgb_to_hsv", "blue": "fractions:Fraction.limit_denominator"},
    accepts=callable,
    wanted="a function",
)


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Writes a Python file; modules that tests import from it are forgotten afterwards."""
    before = set(sys.modules)

    def write(text: str, name: str = "parts.py") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    yield write
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def installed(written, tmp_path: Path, monkeypatch) -> Callable[..., None]:
    """Installs a fake package: a module, and its entry points."""

    def install(text: str, module: str, entry_points: str, package: str = "x") -> None:
        written(text, f"site/{module}.py")
        written(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", f"site/{package}-1.0.dist-info/METADATA")
        written(entry_points, f"site/{package}-1.0.dist-info/entry_points.txt")
        monkeypatch.syspath_prepend(str(tmp_path / "site"))

    return install


# Parts of this package -------------------------------------------------------------------------------------------


def test_a_builtin_part_is_loaded_by_its_name():
    import colorsys
    from fractions import Fraction

    assert COLOURS.names() == ["blue", "red"]
    assert "red" in COLOURS
    assert "green" not in COLOURS
    assert COLOURS.load("red") is colorsys.rgb_to_hsv
    assert COLOURS.load("blue") is Fraction.limit_denominator
    assert COLOURS.origins() == [Origin("blue", "aggmatch"), Origin("red", "aggmatch")]


def test_an_unknown_name_gets_the_closest_match_and_the_command_that_lists_all():
    with pytest.raises(AggMatchError, match=r"'rad'.*'red'.*aggmatch list colours"):
        COLOURS.load("rad")


# Files and modules -----------------------------------------------------------------------------------------------


def test_a_part_of_a_file_is_loaded_by_path_and_name(written):
    file = written("def green(): return 'green'")
    assert COLOURS.load(f"{file}:green")() == "green"


def test_a_relative_path_starts_in_the_working_directory(written, tmp_path, monkeypatch):
    written("def green(): return 'green'", "folder/parts.py")
    monkeypatch.chdir(tmp_path)
    assert COLOURS.load("folder/parts.py:green")() == "green"


def test_a_module_in_the_working_directory_is_found_without_the_path(written, tmp_path, monkeypatch):
    written("def green(): return 'green'", "palette.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    assert COLOURS.load("palette:green")() == "green"


def test_an_installed_module_can_be_named():
    import json

    assert COLOURS.load("json:dumps") is json.dumps
    assert COLOURS.load("os.path:join") is __import__("os").path.join


def test_a_file_is_imported_once(written):
    file = written("class Green: pass")
    again = file.parent / "." / file.name
    assert COLOURS.load(f"{file}:Green") is COLOURS.load(f"{again}:Green")


def test_two_files_of_the_same_name_are_different_modules(written):
    first, second = (written(f"def green(): return {n}", f"{n}/parts.py") for n in (1, 2))
    assert (COLOURS.load(f"{first}:green")(), COLOURS.load(f"{second}:green")()) == (1, 2)


def test_a_file_can_import_its_siblings_and_leaves_the_path_unchanged(written, tmp_path):
    written("NAME = 'green'", "sibling_of_parts.py")
    file = written("from sibling_of_parts import NAME\ndef green(): return NAME")
    before = list(sys.path)
    assert COLOURS.load(f"{file}:green")() == "green"
    assert sys.path == before


def test_two_files_may_each_have_a_sibling_of_the_same_name(written):
    for folder in ("a", "b"):
        written(f"WORD = '{folder}'\n", f"{folder}/helper.py")
        file = written("from helper import WORD\ndef part(): return WORD\n", f"{folder}/own.py")
        assert COLOURS.load(f"{file}:part")() == folder
    assert "helper" not in sys.modules


@pytest.mark.parametrize("code", [0, 3])
def test_a_file_that_ends_the_process_is_an_error(code, written):
    file = written(f"import sys\nsys.exit({code})\n")
    with pytest.raises(AggMatchError, match=r"parts\.py"):
        COLOURS.load(f"{file}:part")


@pytest.mark.parametrize("name", ["~nosuchuser/x.py:X", "loop.py:X", "nul\0.py:X"])
def test_impossible_paths_are_refused_or_named_without_a_traceback(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop.py").symlink_to("loop.py")
    assert absolute(name).endswith(":X")
    with pytest.raises(AggMatchError, match=r"allow=\["):
        refuse_code([name], [], "config.json")
    with pytest.raises(AggMatchError):
        COLOURS.load(name)


def test_a_module_in_the_working_directory_is_remembered_by_its_file(written, tmp_path, monkeypatch):
    written("def part(): return 1\n", "onlyhere.py")
    monkeypatch.chdir(tmp_path)
    assert absolute("onlyhere:part") == f"{tmp_path / 'onlyhere.py'}:part"
    assert absolute("json:dumps") == "json:dumps"


def test_a_refusal_names_all_code_and_quotes_it():
    with pytest.raises(AggMatchError) as error:
        refuse_code(["my dir/a.py:A", "b.py:B", "my dir/a.py:A"], [], "config.json")
    assert str(error.value).endswith("allow=['my dir/a.py:A', 'b.py:B']")
    assert error.value.options == "--allow-code 'my dir/a.py:A' --allow-code b.py:B"


def test_a_file_can_define_dataclasses(written):
    file = written(
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "@dataclass\nclass Green:\n    shade: int = 3\n"
    )
    assert COLOURS.load(f"{file}:Green")().shade == 3


def test_a_file_that_raises_is_named_and_runs_again_next_time(written):
    file = written("raise ValueError('half a thought')")
    before, modules = list(sys.path), set(sys.modules)
    with pytest.raises(AggMatchError, match=r"parts\.py:green.*half a thought"):
        COLOURS.load(f"{file}:green")
    assert sys.path == before
    assert set(sys.modules) == modules
    file.write_text("def green(): return 'fixed'")
    assert COLOURS.load(f"{file}:green")() == "fixed"


@pytest.mark.parametrize("name", ["nowhere.py:green", "nowhere_at_all:green", "json:green"])
def test_code_that_does_not_exist_is_named(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AggMatchError, match="nowhere|green"):
        COLOURS.load(name)


def test_an_object_of_the_wrong_kind_is_named_with_the_kind_that_is_needed(written):
    file = written("green = 3")
    with pytest.raises(AggMatchError, match=r"colour .*parts\.py:green.*a function.*3"):
        COLOURS.load(f"{file}:green")


# Names -----------------------------------------------------------------------------------------------------------


def test_names_of_code_have_a_colon():
    assert all(map(is_code, ["a.py:B", "/x/a b.py:B", "a:B", "a.b.c:B", "small-x.py:Net"]))
    assert not any(map(is_code, ["fixmatch", "wrn-28-2", "a.py", "a.py:", ":B", "a.py:B.c", "folder:runs/x", ""]))


def test_absolute_names_hold_the_whole_path_of_the_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert absolute("a.py:B") == absolute("./x/../a.py:B") == f"{tmp_path.resolve()}/a.py:B"
    assert absolute(f"{tmp_path}/a.py:B") == absolute("a.py:B")
    assert [absolute(name) for name in ("fixmatch", "a.b:C", "wrn-28-2")] == ["fixmatch", "a.b:C", "wrn-28-2"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute("~/a.py:B") == absolute("a.py:B")


def test_short_names_have_no_folders():
    assert short_name("/home/me/my_method.py:Mine") == "my_method.Mine"
    assert short_name("my.module:Mine") == "my.module.Mine"
    assert short_name("wrn-28-2") == "wrn-28-2"


# Code named by a run folder --------------------------------------------------------------------------------------


def test_code_that_the_caller_has_not_named_raises_and_is_not_imported(written, tmp_path):
    file = written(f"open({str(tmp_path / 'was_run')!r}, 'w')\nclass Evil: pass")
    with pytest.raises(AggMatchError, match=r"some/run.*parts\.py:Evil.*allow=\["):
        refuse_code(["fixmatch", f"{file}:Evil"], ["fixmatch"], "some/run")
    refuse_code([f"{file}:Evil"], [f"{file}:Evil"], "some/run")
    assert not (tmp_path / "was_run").exists()


def test_allowed_code_is_the_same_file_however_it_is_spelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuse_code([f"{tmp_path}/a.py:B"], ["a.py:B"], "a run")
    refuse_code(["./a.py:B"], [f"{tmp_path}/a.py:B"], "a run")
    refuse_code(["module:B"], ["module:B"], "a run")


@pytest.mark.parametrize("name", ["a.py:Other", "b.py:B", "a:B", "module:B"])
def test_code_other_than_the_allowed_raises(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AggMatchError, match=name):
        refuse_code([name], ["a.py:B"], "a run")


def test_plain_names_need_no_permission():
    refuse_code(["fixmatch", "wrn-28-2", "digits", "no-such-thing"], [], "a run")


# Installed packages ----------------------------------------------------------------------------------------------


def test_an_installed_package_adds_names_with_their_origin(installed):
    installed("def green(): return 'green'", "x_colours", "[aggmatch.colours]\ngreen = x_colours:green\n")
    assert COLOURS.names() == ["blue", "green", "red"]
    assert Origin("green", "x") in COLOURS.origins()
    assert "green" in COLOURS
    assert "x_colours" not in sys.modules, "nothing is imported until a part is used"
    assert COLOURS.load("green")() == "green"


def test_a_builtin_part_wins_over_an_installed_one_of_the_same_name(installed):
    installed("def red(): return 'other'", "x_reds", "[aggmatch.colours]\nred = x_reds:red\n")
    assert COLOURS.names() == ["blue", "red"]
    assert COLOURS.load("red").__module__ == "colorsys"
    assert "x_reds" not in sys.modules


def test_an_installed_part_that_cannot_be_imported_is_named(installed):
    installed("import no_such_module", "x_broken", "[aggmatch.colours]\ngreen = x_broken:green\n")
    with pytest.raises(AggMatchError, match=r"'green'.*x_broken.*no_such_module"):
        COLOURS.load("green")


def test_a_method_of_an_installed_package_trains(installed, toy_state):
    text = (
        "from aggmatch.methods.fixmatch import Config, FixMatch\n"
        'class Mine(FixMatch):\n    """A method of another package."""\n'
    )
    installed(text, "x_methods", "[aggmatch.methods]\nmine = x_methods:Mine\n")
    assert "mine" in METHODS.names()
    assert Origin("mine", "x") in METHODS.origins()
    assert load_method("mine").__doc__ == "A method of another package."
    state = toy_state("mine")
    state.step()
    assert type(state.method).__name__ == "Mine"


def test_an_installed_object_that_is_no_method_is_named(installed):
    installed("mine = 3", "x_methods", "[aggmatch.methods]\nmine = x_methods:mine\n")
    with pytest.raises(AggMatchError, match=r"method 'mine'.*aggmatch\.Method"):
        load_method("mine")


@pytest.mark.parametrize("name", ["tiny", "small-tiny"])  # also with the first word of a built-in family
def test_a_network_of_an_installed_package_is_built(name, installed):
    text = (
        "from torch import nn\n"
        "def tiny(channels, classes):\n"
        "    return nn.Sequential(nn.Conv2d(channels, 5, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())\n"
    )
    installed(text, "x_models", f"[aggmatch.models]\n{name} = x_models:tiny\n")
    assert name in MODELS.names()
    network = build_network(name, channels=1, classes=3)
    assert network.features == 5
    assert network(torch.zeros(2, 1, 8, 8, dtype=torch.uint8)).logits.shape == (2, 3)


@pytest.mark.parametrize("name", ["mine.py", "a/mine.py", "mine.py:"])
def test_a_file_without_the_name_of_a_part_says_how_to_write_it(name):
    with pytest.raises(AggMatchError, match=rf"Name the method in the file too, as {name.removesuffix(':')}:Name"):
        METHODS.load(name)


@pytest.mark.parametrize(
    "name", ["..x:Y", "x..y:Y", "x.:Y", ".:Y", ":", "\0.py:Y", "a" * 5000 + ".py:Y", "~nobody/a.py:Y"]
)
def test_an_odd_name_gives_one_clear_error(name):
    with pytest.raises(AggMatchError):
        METHODS.load(name)
