"""Pages that live outside `docs/`, where GitHub shows them: a stub in `docs/` stands for each.

Links keep the form that works on GitHub, relative to the file they are in. This extension rewrites them for the site: a
link to an outside page leads to its stub, a link to any other file of the repository becomes a download.
"""

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
OUTSIDE = {
    "results": ROOT / "results/README.md",
    "cold-start": ROOT / "results/cold-start/README.md",
    "benchmarks": ROOT / "benchmarks/README.md",
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
}
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)(#[^)]*)?\)")


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Replace a stub by its outside page, and rewrite the links of any page."""
    file = OUTSIDE.get(name, Path(app.srcdir) / f"{name}.md")
    if name in OUTSIDE:
        source[0] = file.read_text(encoding="utf-8")
    if file.suffix == ".md":
        source[0] = LINK.sub(lambda match: f"]({place(file, match[1], name)}{match[2] or ''})", source[0])


def place(file: Path, target: str, name: str) -> str:
    """The path of a link's target as seen from the page called `name`."""
    wanted = (file.parent / target).resolve()
    stubs = {path.resolve(): stub for stub, path in OUTSIDE.items()}
    docs = ROOT / "docs"
    if wanted in stubs:
        wanted = docs / f"{stubs[wanted]}.md"
    if wanted == ROOT / "README.md":
        wanted = docs / "index.md"
    return os.path.relpath(wanted, (docs / name).parent).replace(os.sep, "/")


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.connect("source-read", read_page)
    for file in OUTSIDE.values():
        assert file.exists(), file
    return {"parallel_read_safe": True}
