"""Output to terminals and files that do not know every character."""

import codecs
import io
from typing import TextIO

PLAIN = {"±": "+-", "–": "-", "−": "-", "…": "...", "×": "x", "·": "*", "µ": "u", "τ": "t", "π": "pi"}
PLAIN |= dict(zip("†‡§¶", "*#@&", strict=True))  # marks must still differ
"""What stands for characters that a stream cannot encode; for all others a question mark."""


def print_plainly(*streams: TextIO) -> None:
    """Let streams replace what they cannot encode instead of failing."""
    codecs.register_error("aggmatch.plain", replaced)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="aggmatch.plain")


def replaced(error: UnicodeError) -> tuple[str, int]:
    """The text in place of characters that could not be encoded, and where to go on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
