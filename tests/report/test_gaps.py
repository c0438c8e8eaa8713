"""What cannot be made is left out, and why is told when all else is made."""

import pytest

from aggmatch.errors import AggMatchError
from aggmatch.report.gaps import Gaps


def half(number: int) -> int | None:
    if number % 2:
        raise AggMatchError(f"{number % 10} is odd.")
    return number // 2 or None


def test_what_can_be_made_is_made_and_the_rest_is_told_once_at_the_end():
    gaps = Gaps()
    assert list(gaps.each(half, [2, 1, 4, 11, 3])) == [1, 2]
    assert list(gaps.each(half, [5, 6])) == [3]
    with pytest.raises(AggMatchError, match=r"^1 is odd. 3 is odd. 5 is odd.$"):
        gaps.tell()


def test_nothing_to_make_is_no_gap():
    gaps = Gaps()
    assert list(gaps.each(half, [0, 8])) == [4]
    gaps.tell()


def test_everything_is_made_only_when_it_is_asked_for():
    made = Gaps().each(half, iter([2, 1]))
    assert next(made) == 1
