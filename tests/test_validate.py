from typing import Any, NotRequired, TypedDict

import pytest

from aggmatch.config import Natural
from aggmatch.errors import AggMatchError
from aggmatch.validate import Percent, require


class Item(TypedDict):
    size: Natural


class Box(TypedDict):
    name: str
    share: Percent
    items: NotRequired[list[Item]]
    weights: NotRequired[dict[str, float] | None]


WHOLE: dict[str, Any] = {"name": "a", "share": 50, "items": [{"size": 1}], "weights": {"b": 0.5}}


@pytest.mark.parametrize("more", [{}, {"weights": None}, {"items": []}, {"unheard of": object()}, {"share": 100.0}])
def test_what_has_the_shape_passes_as_it_is(more):
    value = WHOLE | more
    assert require(value, Box, "f") is value
    assert require({"name": "a", "share": 1}, Box, "f")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "it must be a table, got 5."),
        (None, "it must be a table, got None."),
        ({}, "it lacks name, share."),
        (WHOLE | {"name": 5}, "name must be a string, got 5."),
        (WHOLE | {"share": "x"}, "share must be a number, got 'x'."),
        (WHOLE | {"share": float("nan")}, "share must be a finite number, got nan."),
        (WHOLE | {"share": 101}, "share must be in [0, 100], got 101.0."),
        (WHOLE | {"items": {}}, "items must be a list, got {}."),
        (WHOLE | {"items": [{"size": 1}, {}]}, "items[1] lacks size."),
        (WHOLE | {"items": [{"size": True}]}, "items[0].size must be a whole number, got True."),
        (WHOLE | {"items": [{"size": -1}]}, "items[0].size must be at least 0, got -1."),
        (WHOLE | {"weights": 7}, "weights must be a table, got 7."),
        (WHOLE | {"weights": {"b": "x"}}, "weights.b must be a number, got 'x'."),
    ],
)
def test_what_has_not_is_named_with_its_place(value, message):
    with pytest.raises(AggMatchError) as error:
        require(value, Box, "box.json, line 3")
    assert str(error.value) == f"Cannot read box.json, line 3: {message}"


def test_a_long_value_is_shortened():
    with pytest.raises(AggMatchError) as error:
        require(list(range(10_000)), Box, "f")
    assert len(str(error.value)) < 100
