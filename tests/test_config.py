import json
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import pytest

from aggmatch.config import (
    Count,
    Fraction,
    Layer,
    Positive,
    Range,
    Settings,
    describe,
    differences,
    flatten,
    merge,
    parse_value,
    read_assignment,
    read_file,
    sections,
)
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue


@dataclass(frozen=True, kw_only=True)
class Inner(Settings):
    tau: Fraction = 0.95
    """τ of the tests."""
    kind: Literal["soft", "hard"] = "soft"
    names: tuple[str, ...] = ()
    maybe: Positive | None = None


@dataclass(frozen=True, kw_only=True)
class Outer(Settings):
    inner: Inner = field(default_factory=Inner)
    steps: Count = 10
    """How long.

    A second paragraph.
    """
    on: bool = False


def test_settings_are_frozen_and_validated_when_created():
    with pytest.raises(FrozenInstanceError):
        Inner().tau = 0.5  # type: ignore[misc]
    with pytest.raises(InvalidValue, match=r"^tau must be in \[0, 1\], got 1\.5"):
        Inner(tau=1.5)


@pytest.mark.parametrize(
    ("values", "key", "allowed", "got"),
    [
        ({"steps": 1.5}, "steps", "a whole number", "1.5"),
        ({"steps": True}, "steps", "a whole number", "True"),
        ({"steps": 0}, "steps", "at least 1", "0"),
        ({"steps": "many"}, "steps", "a whole number", "'many'"),
        ({"on": 1}, "on", "true or false", "1"),
        ({"inner": {"tau": "high"}}, "inner.tau", "a number", "'high'"),
        ({"inner": {"tau": float("nan")}}, "inner.tau", "a finite number", "nan"),
        ({"inner": {"kind": "firm"}}, "inner.kind", "one of soft, hard", "'firm'"),
        ({"inner": {"names": "cat"}}, "inner.names", "a list", "'cat'"),
        ({"inner": {"names": [1]}}, "inner.names", "a string", "1"),
        ({"inner": {"maybe": 0.0}}, "inner.maybe", "above 0", "0.0"),
        ({"inner": 3}, "inner", "such as inner.tau", "3"),
    ],
)
def test_the_error_of_a_wrong_value_names_key_value_and_what_is_allowed(values, key, allowed, got):
    with pytest.raises(InvalidValue) as caught:
        Outer.build(values)
    assert caught.value.key == key
    assert str(caught.value).startswith(f"{key} ")
    assert allowed in caught.value.problem
    assert f"got {got}" in caught.value.problem


def test_an_error_names_the_source_of_the_value():
    values, sources = merge([Layer("run.toml", {"inner.tau": 0.5}), Layer("--set inner.tau=2", {"inner.tau": 2})])
    with pytest.raises(InvalidValue, match=r"inner\.tau .* \(from --set inner\.tau=2\)\."):
        Outer.build(values, sources)


def test_an_unknown_key_gets_the_closest_match():
    with pytest.raises(AggMatchError, match=r"'inner\.tua'.*'inner\.tau'"):
        Outer.build({"inner": {"tua": 1}})


def test_whole_numbers_pass_as_floats_and_lists_as_tuples():
    inner = Inner(tau=1, names=["a", "b"], maybe=2)  # type: ignore[arg-type]
    assert (inner.tau, inner.names, inner.maybe) == (1.0, ("a", "b"), 2.0)
    assert isinstance(inner.tau, float)


def test_settings_survive_a_round_trip_through_json():
    settings = Outer(inner=Inner(tau=0.3, names=("x",), maybe=None), steps=3, on=True)
    assert Outer.build(json.loads(json.dumps(settings.to_dict()))) == settings


def test_later_layers_win_for_each_key():
    layers = [Layer("a", {"inner.tau": 0.1, "steps": 1}), Layer("b", {"inner.tau": 0.2, "inner.kind": "hard"})]
    values, sources = merge(layers)
    assert values == {"inner": {"tau": 0.2, "kind": "hard"}, "steps": 1}
    assert sources == {"inner.tau": "b", "steps": "a", "inner.kind": "b"}


def test_nested_values_of_a_layer_change_only_their_own_keys():
    file = Layer("a", {"inner.tau": 0.1, "inner.kind": "soft"})
    assignment = read_assignment('inner={kind = "hard"}')
    assert assignment.values == {"inner.kind": "hard"}
    assert merge([file, assignment])[0] == {"inner": {"tau": 0.1, "kind": "hard"}}


def test_sections_are_found_at_every_depth():
    @dataclass(frozen=True, kw_only=True)
    class Whole(Settings):
        outer: Outer = field(default_factory=Outer)

    assert list(sections(Whole)) == [("outer", Outer), ("outer.inner", Inner)]


def test_a_key_below_a_value_is_an_error():
    with pytest.raises(InvalidValue, match=r"^steps\.more .*'steps'.*\(from b\)"):
        merge([Layer("a", {"steps": 1}), Layer("b", {"steps.more": 1})])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.1", 0.1),
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("none", None),
        ('["a", "b"]', ["a", "b"]),
        ("weighting", "weighting"),
        ("wrn-28-2", "wrn-28-2"),
        ('"0.1"', "0.1"),
        ("", ""),
    ],
)
def test_values_of_the_command_line_are_toml_or_strings(text, value):
    assert parse_value(text) == value


@pytest.mark.parametrize("text", ["optim.lr", "=3", ""])
def test_a_malformed_assignment_is_explained(text):
    with pytest.raises(AggMatchError, match="--set"):
        read_assignment(text)


def test_settings_are_read_from_toml_json_and_run_folders(tmp_path: Path):
    (tmp_path / "run.toml").write_text("steps = 3\n[inner]\ntau = 0.5\n")
    (tmp_path / "config.json").write_text('{"steps": 4, "inner": {"tau": 0.25}}')
    assert read_file(tmp_path / "run.toml").values == {"steps": 3, "inner.tau": 0.5}
    assert read_file(tmp_path / "config.json").values == {"steps": 4, "inner.tau": 0.25}
    assert read_file(tmp_path).values == {"steps": 4, "inner.tau": 0.25}


@pytest.mark.parametrize(("name", "content"), [("a.toml", "steps = ="), ("a.json", "{"), ("b.json", "[1]")])
def test_the_error_of_an_invalid_file_names_it(tmp_path: Path, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(AggMatchError, match=f"Cannot read .*{name}"):
        read_file(tmp_path / name)
    with pytest.raises(AggMatchError, match=r"missing\.toml: No such file"):
        read_file(tmp_path / "missing.toml")


def test_differences_name_changed_added_and_missing_keys():
    before, after = {"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 3}, "d": 4}
    assert differences(before, after) == {"a.c": (2, 3), "d": (None, 4)}


def test_flatten_and_merge_are_inverse():
    nested = {"inner": {"tau": 0.5, "names": ["a"]}, "steps": 3}
    assert merge([Layer("x", flatten(nested))])[0] == nested


def test_the_docstring_of_a_field_describes_its_setting():
    described = {setting.key: setting for setting in describe(Outer)}
    assert described["inner.tau"].text == "τ of the tests."
    assert described["inner.tau"].default == 0.95
    assert described["steps"].text == "How long.\n\nA second paragraph."
    assert list(described) == ["inner.tau", "inner.kind", "inner.names", "inner.maybe", "steps", "on"]


def test_a_range_shows_its_open_and_closed_ends():
    assert str(Range(0, 1, above=True)) == "in (0, 1]"
    assert str(Range(2)) == "at least 2"
    assert 0 not in Range(0, 1, above=True)
    assert 1 in Range(0, 1)


def test_a_field_may_have_a_range_of_its_own():
    @dataclass(frozen=True, kw_only=True)
    class Local(Settings):
        ratio: Annotated[float, Range(1)] = 1.0

    with pytest.raises(InvalidValue, match="ratio must be at least 1, got 0.5"):
        Local(ratio=0.5)


def test_none_is_a_value_or_a_choice_as_the_setting_needs():
    @dataclass(frozen=True, kw_only=True)
    class Choice(Settings):
        term: Literal["some", "none"] = "some"
        count: int | None = 1

    values, _ = merge([read_assignment("term=none"), read_assignment("count=none")])
    assert Choice.build(values) == Choice(term="none", count=None)
    assert Choice.build({"count": "none"}) == Choice(count=None), "TOML has no null"


@pytest.mark.parametrize(
    "text",
    ["a=" + "9" * 10_000, "a=" + "[" * 5000 + "]" * 5000, "a" + ".a" * 5000 + "=1", "a" + ".a" * 60 + "=1", "a=\0"],
)
def test_a_toml_file_that_python_cannot_parse_gives_one_clear_error(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(AggMatchError, match=r"Cannot read .*a\.toml: "):
        read_file(tmp_path / "a.toml")


@pytest.mark.parametrize("text", ["9" * 10_000, "[" * 5000 + "]" * 5000])
def test_a_value_that_python_cannot_parse_is_a_string(text):
    assert parse_value(text) == text


def test_the_digest_of_a_stored_configuration_is_not_a_setting(tmp_path):
    (tmp_path / "config.json").write_text('{"train": {"steps": 3}, "digest": "1"}')
    assert read_file(tmp_path).values == {"train.steps": 3}
