from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.validate import Count, InvalidValue, Natural, Percent, Range, check, parse_json, read_json, require


class Item(TypedDict):
    size: Natural


class Box(TypedDict):
    name: str
    share: Percent
    items: NotRequired[list[Item]]
    weights: NotRequired[dict[str, float] | None]


WHOLE: dict[str, Any] = {"name": "a", "share": 50, "items": [{"size": 1}], "weights": {"b": 0.5}}


@pytest.mark.parametrize("more", [{}, {"weights": None}, {"items": []}, {"unknown": object()}, {"share": 100.0}])
def test_a_value_of_the_right_type_is_returned_unchanged(more):
    value = WHOLE | more
    assert require(value, Box, "f") is value
    assert require({"name": "a", "share": 1}, Box, "f")


@pytest.mark.parametrize(
    ("value", "key", "problem"),
    [
        (5, "it", "a table, got 5"),
        (None, "it", "a table, got None"),
        ({}, "it", "name, share"),
        (WHOLE | {"name": 5}, "name", "a string, got 5"),
        (WHOLE | {"share": "x"}, "share", "a number, got 'x'"),
        (WHOLE | {"share": float("nan")}, "share", "a finite number, got nan"),
        (WHOLE | {"share": 101}, "share", "in [0, 100], got 101.0"),
        (WHOLE | {"items": {}}, "items", "a list, got {}"),
        (WHOLE | {"items": [{"size": 1}, {}]}, "items[1]", "size"),
        (WHOLE | {"items": [{"size": True}]}, "items[0].size", "a whole number, got True"),
        (WHOLE | {"items": [{"size": -1}]}, "items[0].size", "at least 0, got -1"),
        (WHOLE | {"weights": 7}, "weights", "a table, got 7"),
        (WHOLE | {"weights": {"b": "x"}}, "weights.b", "a number, got 'x'"),
    ],
)
def test_the_error_of_a_wrong_value_names_its_place(value, key, problem):
    with pytest.raises(AggMatchError) as error:
        require(value, Box, "box.json, line 3")
    assert str(error.value).startswith(f"Cannot read box.json, line 3: {key} ")
    assert problem in str(error.value)


def test_a_long_value_is_shortened_in_the_message():
    with pytest.raises(AggMatchError) as error:
        require(list(range(10_000)), Box, "f")
    assert len(str(error.value)) < 100


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (3, float, 3.0),
        ([1, 2], tuple[Count, ...], (1, 2)),
        ((1, 2), list[int], [1, 2]),
        (None, Count | None, None),
        ("a", Count | Literal["a"], "a"),
        ({"a": 1}, dict[str, float], {"a": 1.0}),
        (0.5, Annotated[float, Range(0, 1, above=True)], 0.5),
    ],
)
def test_only_whole_numbers_and_lists_are_converted(value, kind, expected):
    found = check(value, kind, "key")
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("3", int),
        (1.0, int),
        (True, int),
        (True, float),
        (1, bool),
        (0, Annotated[float, Range(0, 1, above=True)]),
        ("c", Literal["a", "b"]),
        ("a", Count | None),
    ],
)
def test_other_values_are_errors_that_name_the_key(value, kind):
    with pytest.raises(InvalidValue, match=r"^section\.key ") as caught:
        check(value, kind, "section.key")
    assert caught.value.key == "section.key"
    assert repr(value) in str(caught.value)


@pytest.mark.parametrize("text", ["{", "", "[" * 100_000, b"\xff\xff"])
def test_text_that_is_not_json_is_an_error(text):
    with pytest.raises(AggMatchError, match=r"^Cannot read here: it is not JSON"):
        parse_json(text, Any, "here")


def test_a_json_file_is_read_and_its_errors_name_it(tmp_path: Path):
    path = tmp_path / "box.json"
    path.write_text('{"name": "é", "share": 5}', encoding="utf-8")
    assert read_json(path, Box) == {"name": "é", "share": 5}
    path.write_text('{"name": "a"}')
    with pytest.raises(AggMatchError, match=r"Cannot read .*box\.json: .*share"):
        read_json(path, Box)
    with pytest.raises(AggMatchError, match=r"Cannot read .*missing\.json: .*Is it there\?"):
        read_json(tmp_path / "missing.json", Box, "Is it there?")


@pytest.mark.parametrize("kind", [int, float])
def test_numbers_that_no_tensor_can_hold_are_refused(kind):
    for value in (10**18, -(10**20), 10**400):
        with pytest.raises(InvalidValue, match="key must be a number of at most 18 digits"):
            check(value, kind, "key")
    assert check(10**17, kind, "key") == 10**17


@pytest.mark.parametrize("text", ["a\udcff", "a\0b"])
def test_text_that_no_file_can_hold_is_refused(text):
    with pytest.raises(InvalidValue, match="key must be text that a file can hold"):
        check(text, str, "key")


@pytest.mark.parametrize("text", ["[" * 51 + "]" * 51, '{"a":' * 60 + "1" + "}" * 60, '{"a":[{"b":' * 900])
def test_deeply_nested_json_gives_one_clear_error(text):
    with pytest.raises(AggMatchError, match=r"Cannot read there: it is (nested|not JSON)"):
        parse_json(text, Any, "there")


def test_names_of_entries_are_text_that_a_file_can_hold():
    with pytest.raises(InvalidValue, match="a name in key must be text that a file can hold"):
        check({"caf\udce9": 1}, dict[str, int], "key")
