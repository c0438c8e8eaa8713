"""What the tests of several pages share."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def margin(tmp_path: Path, monkeypatch) -> Path:
    """A folder with the example of docs/add-a-method.md in it, as the working directory."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/add-a-method.md").read_text(), flags=re.S)
    (tmp_path / "margin.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    return tmp_path
