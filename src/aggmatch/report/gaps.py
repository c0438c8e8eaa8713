"""What an analysis cannot draw: it is left out, everything else is drawn, and then the reasons are told."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from aggmatch.errors import AggMatchError

Thing = TypeVar("Thing")
Made = TypeVar("Made")


class Gaps:
    """Reasons why parts of an analysis are missing."""

    def __init__(self) -> None:
        self.reasons: dict[str, None] = {}

    def each(self, make: Callable[[Thing], Made | None], things: Iterable[Thing]) -> Iterator[Made]:
        """What `make` makes of each thing, without what it has nothing to make of or cannot make."""
        for thing in things:
            try:
                made = make(thing)
            except AggMatchError as error:
                self.reasons[str(error)] = None
            else:
                if made is not None:
                    yield made

    def tell(self) -> None:
        """Raise the reasons, each once, as one error; nothing where there are none."""
        if self.reasons:
            raise AggMatchError(" ".join(self.reasons))
