"""Public names, import layers, sizes of modules, and no side effects at import."""

import ast
import inspect
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import aggmatch

SOURCE = Path(aggmatch.__file__).parent

LAYERS = [
    ["errors"],
    ["storage", "validate"],
    ["config", "devices", "recipes", "registry", "signals"],
    ["distributed", "functional", "progress", "tables"],
    ["kernels"],
    ["data", "models"],
    ["augment", "methods"],
    ["features", "own_recipe"],
    ["evaluation"],
    ["settings"],
    ["runs"],
    ["training"],
    ["inference"],
    ["bench", "console", "report"],
    ["notebook"],
    ["classifier"],
    ["experiments", "page"],
    ["cli"],
    ["__main__"],
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}


def test_every_public_name_can_be_imported_and_no_other_name_is_public():
    assert sorted(set(aggmatch.__all__)) == sorted(aggmatch.__all__)
    listed = [name for names in aggmatch._MODULES.values() for name in names]
    assert sorted(listed) == sorted(aggmatch.__all__)
    for module, names in aggmatch._MODULES.items():
        for name in names:
            assert getattr(aggmatch, name).__module__.startswith(module)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = aggmatch.nonsense
    assert set(aggmatch.__all__) <= set(dir(aggmatch))


def test_the_public_names_change_only_on_purpose():
    assert sorted(aggmatch.__all__) == [
        "AggMatchClassifier",
        "AggMatchError",
        "Aggregate",
        "Batch",
        "ClassBalancedQueue",
        "DataSet",
        "Evaluation",
        "Images",
        "Layer",
        "Memory",
        "Method",
        "Network",
        "Output",
        "Problem",
        "PseudoLabels",
        "Report",
        "Run",
        "RunSettings",
        "Settings",
        "Split",
        "StepResult",
        "Stopped",
        "TrainedModel",
        "Views",
        "aggregate",
        "build_network",
        "draw_split",
        "evaluate",
        "load",
        "load_method",
        "resolve",
        "resume",
        "show_report",
        "start",
        "watch",
    ]


def test_importing_the_package_or_its_command_line_does_not_import_torch():
    code = "import sys, aggmatch, aggmatch.cli; sys.exit('torch' in sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    assert subprocess.run([sys.executable, "-c", code], check=False, env=environment).returncode == 0


def imports(path: Path) -> set[str]:
    """First components of the package's own modules that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "aggmatch" and len(parts) > 1 and parts[1] in RANK:
                found.add(parts[1])
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_down_only(path: Path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own == "__init__":
        return
    assert own in RANK, f"{own} belongs to no layer"
    assert not {module for module in imports(path) if module != own and RANK[module] >= RANK[own]}


def test_methods_import_neither_data_nor_training():
    for path in (SOURCE / "methods").rglob("*.py"):
        assert not imports(path) & {"data", "training", "evaluation"}


def messages(node: ast.AST) -> Iterator[str]:
    """Texts in a module that may reach a user of Python: all but docstrings and the `options` of an error."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not docstring and not (isinstance(child, ast.keyword) and child.arg == "options"):
            yield from messages(child)


OPTION = re.compile(r"(?<![\w-])--[a-z]")
FOR_PYTHON = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "config.py"]  # which parses `--set`


@pytest.mark.parametrize("path", FOR_PYTHON, ids=lambda path: str(path.relative_to(SOURCE)))
def test_only_the_command_line_speaks_of_its_options(path: Path):
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if RANK.get(own, 0) <= RANK["inference"] or own in ("classifier", "notebook"):
        assert not [text for text in messages(ast.parse(path.read_text())) if OPTION.search(text)]


MODULES = sorted(SOURCE.rglob("*.py"))
MANY = {".": 17, "methods": 20}
"""Packages that may have more modules than others: the ground floor, and one per method."""


@pytest.mark.parametrize(
    "folder",
    sorted({path.parent for path in MODULES}),
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_no_package_has_too_many_modules(folder: Path):
    modules = [path.stem for path in folder.glob("*.py") if path.stem != "__init__"]
    assert len(modules) <= MANY.get(folder.relative_to(SOURCE).as_posix(), 14), sorted(modules)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_module_has_more_than_400_lines(path: Path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


IMPORT_ALL = """
import importlib, os, sys
import sklearn, torch  # what they change when they are imported does not count


def state():
    return {
        "sys.path": list(sys.path),
        "environment": dict(os.environ),
        "cudnn.benchmark": torch.backends.cudnn.benchmark,
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "gradients": torch.is_grad_enabled(),
        "random numbers": torch.get_rng_state().tolist(),
    }


before = state()
for name in sys.argv[1:]:
    importlib.import_module(name)
    after = state()
    changed = [key for key in before if before[key] != after[key]]
    if changed:
        sys.exit(f"importing {name} changes {', '.join(changed)}")
print(len(sys.argv) - 1)
"""


def test_importing_a_module_has_no_side_effects():
    names = [
        ".".join(["aggmatch", *path.relative_to(SOURCE).with_suffix("").parts]).removesuffix(".__init__")
        for path in MODULES
        if path.name != "__main__.py"
    ]
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names], check=False, env=environment, capture_output=True, text=True
    )
    assert done.stdout == f"{len(names)}\n", done.stderr


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    file = SOURCE.parents[1] / project["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{aggmatch.__version__}"\n' in file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", aggmatch.__all__)
def test_every_public_name_is_documented_with_its_parameters_and_an_example(name: str):
    part = getattr(aggmatch, name)
    text = part.__doc__ if inspect.isfunction(part) else vars(part)["__doc__"]
    assert text
    assert "Example" in text or ">>>" in text
    parameters = inspect.signature(part).parameters if inspect.isfunction(part) else ()
    assert not [parameter for parameter in parameters if not re.search(rf"\b{parameter}\b", text)]
