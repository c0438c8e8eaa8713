"""The public names, and the direction in which modules may import each other."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aggmatch

SOURCE = Path(aggmatch.__file__).parent

LAYERS = [
    ["errors"],
    ["config", "devices", "files", "side_stream"],
    ["functional", "tables", "validate"],
    ["kernels"],
    ["augment", "models"],
    ["data", "methods"],
    ["evaluation", "recipes"],
    ["settings"],
    ["runs"],
    ["training"],
    ["inference"],
    ["bench", "console", "report"],
    ["experiments"],
    ["cli"],
    ["__main__"],
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}


def test_every_public_name_can_be_imported_and_nothing_else_is_promised():
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
        "start",
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
    assert own in RANK, f"{own} has no place among the layers"
    assert not {module for module in imports(path) if module != own and RANK[module] >= RANK[own]}


def test_methods_know_neither_data_nor_training():
    for path in (SOURCE / "methods").glob("*.py"):
        assert not imports(path) & {"data", "training", "evaluation"}
