"""Fixtures that the tests of several pages share."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDES = {"method": "margin", "data-set": "bars", "backbone": "net", "view": "noisy", "figure": "rate"}
"""Page of a guide → the name under which it tells the reader to save its example."""


def example(page: str) -> str:
    """The only Python block of a guide."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / f"docs/extending/{page}.md").read_text(), flags=re.S)
    return code


@pytest.fixture
def guides(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A folder with the examples of all guides, as the working directory."""
    monkeypatch.chdir(tmp_path)
    for page, name in GUIDES.items():
        (tmp_path / f"{name}.py").write_text(example(page))
    yield tmp_path
    for name in GUIDES.values():
        sys.modules.pop(name, None)
