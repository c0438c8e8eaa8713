"""Turns docstrings, which are plain text with Markdown code, into reStructuredText for autodoc.

- Paragraphs stay paragraphs; `code` becomes code; lines that start with a dash stay a list.
- `name: text` at the start of a line, with the name of a parameter, becomes the description of that parameter.
- `Example:` starts a block of code.
- An indented paragraph is an equation or code and is shown as it is.
"""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from sphinx.application import Sphinx

SPECIAL = re.compile(r"([\\*_|`<>])")
CODE = re.compile(r"`([^`]+)`")
OUTCOME = re.compile(r"(?<=[.]) (?=Returns?\b|Raises?\b)")
"""Where the description of the last parameter ends and that of the result begins."""


def rewrite(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of a docstring; called by autodoc."""
    lines[:] = list(convert("\n".join(lines), parameters(obj)))


def parameters(obj: Any) -> set[str]:
    """Names of the parameters of a function or class, as they appear in its docstring."""
    try:
        return set(inspect.signature(obj).parameters)
    except (TypeError, ValueError):
        return set()


def convert(text: str, names: set[str]) -> Iterator[str]:
    """Lines of reStructuredText for a docstring."""
    for paragraph in re.split(r"\n\s*\n", text.strip("\n")):
        lines = paragraph.split("\n")
        if lines[0].startswith(" "):
            yield from ["::", "", *(f"    {line}" for line in lines)]
        elif lines[0].startswith("- "):
            yield from (escape(line) for line in lines)
        elif match := re.match(r"Examples?:\s*(.*)", paragraph, flags=re.S):
            yield from example(match[1])
        else:
            yield from words(lines, names)
        yield ""


def words(lines: list[str], names: set[str]) -> Iterator[str]:
    """A paragraph; the descriptions of parameters in it become a definition list."""
    text = " ".join(line.strip() for line in lines)
    if not names:
        yield escape(text)
        return
    known = "|".join(sorted(map(re.escape, names)))
    start = re.compile(rf"(?:^|(?<=[.;] ))((?:{known})(?:, (?:{known}))*): ")
    lead, *parts = start.split(text)
    if lead:
        yield escape(lead)
    if lead and parts:
        yield ""
    rest = []
    for given, description in zip(parts[::2], parts[1::2], strict=True):
        described, *sentences = OUTCOME.split(description.strip(), maxsplit=1)
        rest += sentences
        yield ", ".join(f"``{name}``" for name in given.split(", "))
        yield f"    {escape(described)}"
    for sentence in rest:
        yield ""
        yield escape(sentence)


def example(text: str) -> Iterator[str]:
    """A block of code, or a sentence with code in it."""
    whole = re.fullmatch(r"`([^`]+)`[.]?", text.strip())
    if not whole and "`" in text:
        yield f"Example: {escape(' '.join(text.split()))}"
        return
    yield from ["Example:", "", ".. code-block:: python", ""]
    for line in inspect.cleandoc(whole[1] if whole else text).split("\n"):
        yield f"    {line}"


def escape(text: str) -> str:
    """Text in which nothing but code has a meaning of its own."""
    parts = CODE.split(text)
    parts[::2] = [SPECIAL.sub(r"\\\1", part) for part in parts[::2]]
    parts[1::2] = [f"\\ ``{part.strip()}``\\ " for part in parts[1::2]]
    return "".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("autodoc-process-docstring", rewrite)
    return {"parallel_read_safe": True}
