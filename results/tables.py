"""Updates the tables of some pages from the results files: python results/tables.py

Such a table is between a comment with the command that prints it and the comment `end of table`.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from aggmatch.cli import app

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", ROOT / "results/README.md", ROOT / "docs/pretrained.md")
TABLE = re.compile(r"(<!-- aggmatch ([^\n]*) -->\n).*?(<!-- end of table -->\n)", flags=re.S)


def renewed(page: str) -> str:
    """The text of a page with the current output of its commands."""
    return TABLE.sub(lambda match: f"{match[1]}\n{printed(match[2])}\n{match[3]}", page)


def printed(words: str) -> str:
    """The output of a command in the root of the repository."""
    text = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(text), contextlib.redirect_stderr(io.StringIO()):
        app(shlex.split(words), standalone_mode=False)
    return text.getvalue()


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
