"""Pages that must cover everything of one kind: public names, modules, methods."""

import re
import runpy
from pathlib import Path

import aggmatch
from aggmatch.methods import METHODS

ROOT = Path(__file__).parents[2]
SOURCE = Path(aggmatch.__file__).parent


def test_every_public_name_is_in_the_reference():
    pages = "\n".join(page.read_text() for page in ROOT.glob("docs/api/*.md"))
    documented = set(re.findall(r"^\.\. auto\w+:: aggmatch\.(\w+)$", pages, flags=re.M))
    assert documented == set(aggmatch.__all__)


def test_every_module_has_its_place_among_the_layers():
    (diagram,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/architecture.md").read_text(), flags=re.S)
    modules = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert modules - {"__init__", "__main__"} <= set(re.findall(r"\w+", diagram))


def test_every_path_on_the_architecture_page_exists():
    page = (ROOT / "docs/architecture.md").read_text()
    for line in page.splitlines():
        paths = [path for path in re.findall(r"`([\w/]+(?:/|\.(?:py|html|css)))`", line) if "NAME" not in path]
        folders = [SOURCE, *(SOURCE / path if path.endswith("/") else (SOURCE / path).parent for path in paths)]
        for path in paths:
            assert any((folder / path).exists() for folder in [*folders, ROOT]), f"{path} in: {line}"


def test_every_method_has_its_advice_and_the_measured_accuracy():
    advice, measured, *_ = (ROOT / "docs/methods.md").read_text().split("## ")
    assert set(re.findall(r"^\| `(\w+)` \|", advice, flags=re.M)) == set(METHODS.builtin())
    rows = re.findall(r"^\| `(\w+)` \| ([\d.]+ ± [\d.]+) \|", measured, flags=re.M)
    assert {name for name, _ in rows} == set(METHODS.builtin())
    readme = (ROOT / "results/README.md").read_text()
    for name, accuracy in rows:
        assert f"| {name} | {accuracy} |" in readme


# How docstrings are shown ------------------------------------------------------------------------------------------

CONVERT = runpy.run_path(str(ROOT / "docs/_ext/docstrings.py"))["convert"]


def test_parameters_in_a_docstring_become_a_definition_list():
    text = "Do it.\n\nrun: its folder. steps, seed: numbers of\n    two lines. note: not a parameter. Returns (B,)."
    assert list(CONVERT(text, {"run", "steps", "seed"})) == [
        "Do it.",
        "",
        "``run``",
        "    its folder.",
        "``steps``, ``seed``",
        "    numbers of two lines. note: not a parameter.",
        "",
        "Returns (B,).",
        "",
    ]


def test_code_and_equations_in_a_docstring_are_kept_and_the_rest_means_nothing_to_sphinx():
    text = "Weights `w_B` of *all* images_.\n\n    c = exp(a_b)\n\nExample: `f(1)`."
    assert list(CONVERT(text, set())) == [
        r"Weights \ ``w_B``\  of \*all\* images\_.",
        "",
        "::",
        "",
        "        c = exp(a_b)",
        "",
        "Example:",
        "",
        ".. code-block:: python",
        "",
        "    f(1)",
        "",
    ]
