"""Output to terminals and files whose encoding lacks some characters."""

import codecs
import io
from typing import TextIO

PLAIN = {"±": "+-", "–": "-", "−": "-", "…": "...", "×": "x", "·": "*", "µ": "u", "τ": "t", "π": "pi"}
PLAIN |= dict(zip("†‡§¶", "*#@&", strict=True))  # marks must still differ
"""Replacements for characters that a stream cannot encode; all others become a question mark."""


def print_plainly(*streams: TextIO) -> None:
    """Make streams replace characters that they cannot encode instead of failing."""
    codecs.register_error("aggmatch.plain", replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="aggmatch.plain")


def replaced(error: UnicodeError) -> tuple[str, int]:
    """The replacement for characters that could not be encoded, and the position after them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
