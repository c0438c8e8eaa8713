"""Extensions for tests: Python files, and installed packages that announce objects under entry points."""

from pathlib import Path

import pytest


def write(folder: Path, name: str, text: str) -> Path:
    """Write a Python file."""
    file = folder / name
    file.write_text(text)
    return file


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, group: str, **entries: str) -> None:
    """Make a package `extras` in `folder` look installed; entries are name → `module:object`."""
    info = folder / "extras-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extras\nVersion: 1.0\n")
    lines = [f"{name} = {value}\n" for name, value in entries.items()]
    (info / "entry_points.txt").write_text(f"[{group}]\n" + "".join(lines))
    monkeypatch.syspath_prepend(folder)
