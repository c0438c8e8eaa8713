"""Files around the code agree with it: version, citation, checks before a commit, continuous integration."""

import re
from pathlib import Path

import aggmatch

ROOT = Path(__file__).parents[2]


def recipe(target: str) -> list[str]:
    """The commands of a target of the Makefile, without the folder of the environment."""
    (lines,) = re.findall(rf"^{target}:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), flags=re.M)
    return [line.strip().replace("$(BIN)", ".venv/bin") for line in lines.splitlines()]


def test_citation_and_changelog_are_of_this_version():
    citation = (ROOT / "CITATION.cff").read_text()
    assert re.findall(r"^version: (.*)$", citation, flags=re.M) == [aggmatch.__version__]
    newest = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.M)[0]
    assert newest == aggmatch.__version__


def test_the_hooks_before_a_commit_are_the_quick_checks_of_make_test():
    hooks = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), flags=re.M)
    assert hooks == recipe("test")[: len(hooks)]
    assert len(hooks) == 3


def test_make_test_builds_the_site_and_warnings_are_errors():
    assert "$(MAKE) docs" in recipe("test")
    assert "--fail-on-warning" in recipe("docs")[0]


def test_the_workflow_calls_make_test_with_the_oldest_and_the_newest_versions():
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert "make test" in workflow
    required = (ROOT / "pyproject.toml").read_text()
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', required)
    (torch,) = re.findall(r'"torch>=([\d.]+)"', required)
    assert f'python: "{python}"' in workflow
    assert f'torch: "torch=={torch}.*"' in workflow
