"""The examples of the extension guides, taken from the pages and used as a reader would."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from tests.docs.conftest import GUIDES, ROOT

from aggmatch.augment.views import VIEWS
from aggmatch.data import SOURCES
from aggmatch.methods import METHODS
from aggmatch.models import MODELS
from aggmatch.registry import Registry

QUICK = ["--steps", 20, "--out", "run", "--quiet"]
INDEX = ROOT / "docs/extending/index.md"


def summary() -> dict[str, object]:
    """The result of the run in the working directory."""
    return json.loads(Path("run/summary.json").read_text())


@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_fits_on_a_screen_and_names_the_file_to_save(page):
    text = (ROOT / f"docs/extending/{page}.md").read_text()
    assert len(text.splitlines()) <= 50
    assert f"`{GUIDES[page]}.py`" in text


def test_the_method_trains_and_its_pseudo_labels_are_logged(run, guides):
    code, _, error = run("train", "digits", "--method", "margin.py:MarginMatch", "--set", "model.name=small-4", *QUICK)
    assert code == 0, error
    assert summary()["method"] == f"{guides}/margin.py:MarginMatch"
    coverage = summary()["pseudo_coverage"]
    assert isinstance(coverage, float)
    assert 0 < coverage < 1


def test_the_method_resumes_only_if_its_code_is_named_again(run, guides):
    run("train", "digits", "--method", "margin.py:MarginMatch", "--set", "model.name=small-4", *QUICK)
    code, _, error = run("train", "--resume", "--out", "run")
    assert code == 2
    assert "--allow-code" in error
    code, _, error = run("train", "--resume", "--out", "run", "--method", "margin.py:MarginMatch")
    assert code == 0, error


def test_a_value_out_of_the_range_of_its_type_is_an_error(run, guides):
    code, _, error = run("train", "--method", "margin.py:MarginMatch", "--set", "method.unlabeled_weight=-1")
    assert code == 2
    assert "method.unlabeled_weight" in error


def test_the_data_set_can_be_learned(run, guides):
    words = ["--labels", 8, "--set", "model.name=small-8", "--set", "train.batch=8"]
    code, _, error = run("train", "bars.py:BARS", *words, "--method", "supervised", *QUICK, "--steps", 60)
    assert code == 0, error
    accuracy = summary()["class_accuracy"]
    assert isinstance(accuracy, dict)
    assert set(accuracy) == {"horizontal", "vertical"}
    assert summary()["accuracy"] == pytest.approx(100, abs=30), "chance is 50 %"


@pytest.mark.parametrize("method", ["aggmatch", "paws"])
def test_the_backbone_trains_with_methods_that_use_features(run, guides, method):
    code, _, error = run("train", "digits", "--method", method, "--set", "model.name=net.py:Net", *QUICK)
    assert code == 0, error
    code, out, error = run("evaluate", "run", "--allow-code", "net.py:Net")
    assert code == 0, error
    assert "of 360 test images" in out


def test_the_view_takes_the_place_of_the_strong_view(run, guides):
    code, _, error = run("train", "digits", "--method", "fixmatch", "--set", "views.strong=noisy.py:noisy", *QUICK)
    assert code == 0, error
    assert json.loads(Path("run/config.json").read_text())["views"]["strong"] == f"{guides}/noisy.py:noisy"


def test_the_figure_is_drawn_from_a_run(run, guides):
    run("train", "digits", "--set", "model.name=small-4", *QUICK)
    code, out, error = run("figures", "run", "--only", "rate.py:FIGURE")
    assert code == 0, error
    assert out.split()[0] == "figures/learning-rate.svg"
    assert "learning rate" in Path("figures/learning-rate.svg").read_text()


# Entry points -----------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(guides, monkeypatch) -> dict[str, dict[str, str]]:
    """Group → name → object: the entry points of the index page, announced by a package `extras` on the path."""
    (block,) = [
        text for text in re.findall(r"```toml\n(.*?)```", INDEX.read_text(), flags=re.S) if "entry-points" in text
    ]
    groups: dict[str, dict[str, str]] = tomllib.loads(block)["project"]["entry-points"]
    info = guides / "extras-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: extras\nVersion: 1.0\n")
    lines = [
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
        for group, names in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(guides)
    return groups


def test_an_installed_package_adds_names_that_work_like_built_in_ones(run, installed):
    words = ["--set", "model.name=tiny", "--set", "views.strong=noisy", "--set", "train.batch=8", "--labels", 8]
    code, _, error = run("train", "bars", "--method", "margin", *words, *QUICK)
    assert code == 0, error
    code, _, error = run("evaluate", "run")
    assert code == 0, f"names of installed packages need no permission: {error}"


def test_every_kind_of_part_can_be_announced_and_names_its_package(installed):
    registries: list[Registry[object]] = [METHODS, SOURCES, MODELS, VIEWS]  # type: ignore[list-item]
    from aggmatch.report.figures import FIGURES

    registries.append(FIGURES)  # type: ignore[arg-type]
    assert set(installed) == {f"aggmatch.{registry.plural}" for registry in registries}
    for registry in registries:
        (name,) = installed[f"aggmatch.{registry.plural}"]
        assert (name, "extras") in registry.origins()
        assert registry.load(name)


@pytest.mark.parametrize("kind", ["methods", "data", "models", "views", "figures"])
def test_the_list_shows_where_a_part_comes_from(run, installed, kind):
    code, out, error = run("list", kind)
    assert code == 0, error
    (name,) = installed[f"aggmatch.{kind}"]
    (line,) = [line for line in out.splitlines() if re.search(rf"\b{name}\b", line)]
    assert "extras" in line
