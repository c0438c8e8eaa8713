"""The commands `figures` and `explain`, from their arguments to their files."""

import re
import shutil
from pathlib import Path

import pytest
from tests.folders import line, write_folder

from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.report import figures
from aggmatch.report.figure import Panel
from aggmatch.runs.stored import StoredRun, read_runs


@pytest.fixture(autouse=True)
def quick_layouts(quick_map):
    """No test here needs t-SNE."""


def test_figures_writes_a_file_for_each_plot_and_prints_its_path(run, rival_folders, tmp_path, monkeypatch):
    panels: list[Panel] = []
    draw = figures.draw

    def recording(*words, **options):
        for name, panel in draw(*words, **options):
            panels.append(panel)
            yield name, panel

    monkeypatch.setattr(figures, "draw", recording)
    code, out, err = run("figures", rival_folders[0], "--out", "drawn")
    assert (code, err) == (0, "")
    listed = out.split()
    assert set(listed) == {str(path.relative_to(tmp_path)) for path in (tmp_path / "drawn").iterdir()}
    assert len(listed) == sum(len(panel.plots) for panel in panels) + 1
    for name in ("confusion", "refinement", "attention", "embedding", "explain"):
        assert any(path.startswith(f"drawn/{name}-aggmatch-fold-0") for path in listed)
    captions = (tmp_path / "drawn/captions.md").read_text()
    headings = re.findall(r"^## (.*)", captions, re.MULTILINE)
    assert len(headings) == len(panels)
    assert ", ".join(headings).split(", ") == [Path(path).name for path in listed[:-1]]
    assert all(panel.caption in captions for panel in panels)


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_can_be_chosen_by_name_and_kind(run, tmp_path, kind, start):
    write_folder(tmp_path / "run", [line(5)], summary={})
    assert run("figures", "run", "--only", "curves", "--format", kind)[0] == 0
    drawn = list((tmp_path / "figures").glob(f"*.{kind}"))
    assert drawn
    assert all(path.name.startswith("losses") and path.read_bytes().startswith(start) for path in drawn)


def test_a_run_that_still_trains_is_drawn_with_what_it_has(run, tmp_path):
    write_folder(tmp_path / "run", [line(5, accuracy_average=12.0)])
    code, out, _ = run("figures", "run")
    assert code == 0
    *drawn, captions = out.split()
    assert {Path(path).stem.split("-")[0] for path in drawn} == {"accuracy", "losses"}
    assert captions == "figures/captions.md"


def test_code_that_a_run_names_runs_only_if_it_is_allowed(run, tmp_path):
    (tmp_path / "mine.py").write_text("from aggmatch import Method\n\nclass Mine(Method):\n    pass\n")
    write_folder(tmp_path / "run", [line(5)], method=f"{tmp_path / 'mine.py'}:Mine")
    for words in (["figures", "run"], ["explain", "run", "1"]):
        code, _, err = run(*words)
        assert code == 2
        assert f"--allow-code {tmp_path / 'mine.py'}:Mine" in err
    assert run("figures", "run", "--allow-code", "mine.py:Mine", "--allow-code", "other.py:Other")[0] == 0
    assert "--allow-code" not in run("explain", "run", "1", "--allow-code", "mine.py:Mine")[2]


def test_explain_prints_a_table_for_each_image_and_writes_pictures(run, rival_folders: list[Path], tmp_path):
    code, out, err = run("explain", rival_folders[0], 4, 700, "--top", 3, "--out", "deep/why.png")
    assert (code, err) == (0, "")
    assert "Image 4, true class" in out
    assert "Image 700, true class" in out
    assert len(re.findall(r"^ +\d+\.\d{3}  ", out, re.MULTILINE)) == 6, "three rows for each"
    pictures = sorted((tmp_path / "deep").iterdir())
    assert re.findall(r"^deep/(.*)$", out, re.MULTILINE) == [path.name for path in pictures]
    assert pictures[0].stem.startswith("why")
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in pictures)


def test_explain_looks_at_the_snapshot_of_a_step(run, rival_folders: list[Path]):
    last, early = run("explain", rival_folders[0], 4)[1], run("explain", rival_folders[0], 4, "--snapshot", 3)[1]
    assert last != early


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["figures", "nowhere"], "nowhere"),
        (["figures", "{aggmatch}", "--only", "attentoin"], "Did you mean 'attention'?"),
        (["figures", "{fixmatch}", "--only", "attention"], "Nothing could be drawn for attention"),
        (["figures", "{aggmatch}", "--device", "quantum"], "runtime.device"),
        (["explain", "nowhere", "1"], "nowhere"),
        (["explain", "{aggmatch}", "5000"], "'5000'"),
        (["explain", "{fixmatch}", "1"], "fixmatch"),
        (["explain", "{aggmatch}", "1", "--snapshot", "7"], "3, 15, 30"),
        (["explain", "{aggmatch}", "1", "--out", "why.bmp"], "why.bmp"),
    ],
)
def test_a_mistake_is_one_line_that_names_it_and_exit_code_two(run, rival_folders: list[Path], tmp_path, words, named):
    places = {folder.name: str(folder) for folder in rival_folders}
    code, _, err = run(*(word.format(**places) for word in words))
    assert code == 2
    assert named in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing was left behind"


def without_data(_: StoredRun) -> DataSet:
    raise AggMatchError("digits is not in data.")


def test_what_cannot_be_drawn_is_left_out_and_named(run, rival_folders: list[Path], tmp_path, monkeypatch):
    monkeypatch.setattr(StoredRun, "data", without_data)
    code, out, err = run("figures", rival_folders[0])
    assert code == 0
    assert [path for path in out.split() if "accuracy" in path]
    assert not [path for path in out.split() if "embedding" in path]
    assert re.fullmatch(r"Left out of (.+): digits is not in data\.\n", err)
    assert {"confusion", "refinement", "attention", "embedding", "explain"} <= set(re.findall(r"\w+", err))
    assert re.findall(r"\w+", err).count("attention") == 1


def test_one_corrupt_snapshot_does_not_hide_other_runs(run, rival_folders: list[Path], tmp_path):
    shutil.copytree(rival_folders[0], tmp_path / "run")
    read_runs([tmp_path / "run"])[0].snapshots[-1].write_bytes(b"no checkpoint")
    code, out, err = run("figures", "run", rival_folders[1], "--only", "embedding,attention")
    assert code == 0
    assert all(path.startswith("figures/embedding-fixmatch-fold-0") for path in out.split()[:-1])
    assert err.startswith("Left out of attention, embedding: ")
    assert "run/snapshots/step-00000030.safetensors" in err


def test_a_corrupt_snapshot_is_named(run, rival_folders: list[Path], tmp_path):
    shutil.copytree(rival_folders[0], tmp_path / "run")
    (corrupt, *_) = read_runs([tmp_path / "run"])[0].snapshots
    corrupt.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    code, _, err = run("figures", "run", "--only", "embedding")
    assert code == 2
    assert "step-00000003.safetensors" in err


def test_a_file_in_the_way_of_the_folder_is_named(run, rival_folders: list[Path], tmp_path):
    (tmp_path / "figures").write_text("in the way")
    code, _, err = run("figures", rival_folders[0], "--only", "curves")
    assert code == 2
    assert "figures: File exists" in err
