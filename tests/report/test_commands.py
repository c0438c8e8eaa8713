"""The commands `figures` and `explain`, from their words to their files."""

import re
import shutil
from pathlib import Path

import pytest
from tests.folders import line, write_folder

from aggmatch import report as analysis
from aggmatch.data import DataSet
from aggmatch.errors import AggMatchError
from aggmatch.runs.stored import RunRecord, read_runs


@pytest.fixture(autouse=True)
def quick_layouts(quick_map):
    """No test here is about the layout of points."""


def test_figures_writes_every_panel_and_prints_its_place(run, rival_folders: list[Path], tmp_path):
    code, out, err = run("figures", rival_folders[0], "--out", "drawn")
    assert (code, err) == (0, "")
    listed = out.split()
    assert set(listed) == {str(path.relative_to(tmp_path)) for path in (tmp_path / "drawn").iterdir()}
    for name in ("confusion", "refinement", "attention", "embedding", "explain"):
        assert f"drawn/{name}-aggmatch-fold-0.svg" in listed
    captions = (tmp_path / "drawn/captions.md").read_text()
    assert re.findall(r"^## (.*)", captions, re.MULTILINE) == [Path(path).name for path in listed[:-1]]


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_figures_can_be_chosen_by_analysis_and_kind(run, tmp_path, kind, start):
    write_folder(tmp_path / "run", [line(5)], summary={})
    assert run("figures", "run", "--only", "curves", "--format", kind)[0] == 0
    (figure,) = (tmp_path / "figures").glob(f"*.{kind}")
    assert figure.name == f"losses.{kind}"
    assert figure.read_bytes().startswith(start)


def test_a_run_still_training_is_drawn_as_far_as_it_got(run, tmp_path):
    write_folder(tmp_path / "run", [line(5, accuracy_average=12.0)])
    code, out, _ = run("figures", "run")
    assert code == 0
    assert out.split() == ["figures/accuracy.svg", "figures/losses.svg", "figures/captions.md"]


def test_panels_refuse_an_unknown_analysis_before_they_draw(rivals):
    with pytest.raises(AggMatchError, match="Unknown analysis 'curve'. Did you mean 'curves'?"):
        next(analysis.panels(rivals, ["attention", "curve"]))


def test_explain_prints_a_table_for_each_image_and_writes_the_picture(run, rival_folders: list[Path], tmp_path):
    code, out, err = run("explain", rival_folders[0], 4, 700, "--top", 3, "--out", "deep/why.png")
    assert (code, err) == (0, "")
    assert "Image 4, true class" in out
    assert "Image 700, true class" in out
    assert len(re.findall(r"^ +\d+\.\d\d  ", out, re.MULTILINE)) == 6, "three rows for each"
    assert out.endswith("deep/why.png\n")
    assert (tmp_path / "deep/why.png").read_bytes().startswith(b"\x89PNG")


def test_explain_looks_at_the_snapshot_of_a_step(run, rival_folders: list[Path]):
    last, early = run("explain", rival_folders[0], 4)[1], run("explain", rival_folders[0], 4, "--snapshot", 3)[1]
    assert last != early


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["figures", "nowhere"], "nowhere is not the folder of a run"),
        (["figures", "{aggmatch}", "--only", "attentoin"], "Unknown analysis 'attentoin'. Did you mean 'attention'?"),
        (["figures", "{fixmatch}", "--only", "attention"], "These runs hold nothing to draw for: attention."),
        (["figures", "{aggmatch}", "--device", "quantum"], "runtime.device must be auto, cpu, cuda or cuda:N"),
        (["explain", "nowhere", "1"], "nowhere is not the folder of a run"),
        (["explain", "{aggmatch}", "5000"], "There is no image '5000' among those numbered 0 to 1436."),
        (["explain", "{fixmatch}", "1"], "which has no queue to explain a pseudo label by."),
        (["explain", "{aggmatch}", "1", "--snapshot", "7"], "has no snapshot of step 7. There are: 3, 15, 30."),
        (["explain", "{aggmatch}", "1", "--out", "why.bmp"], "--out must end in .png, .svg or .pdf, got why.bmp."),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_two(run, rival_folders: list[Path], tmp_path, words, message):
    places = {folder.name: str(folder) for folder in rival_folders}
    code, _, err = run(*(word.format(**places) for word in words))
    assert code == 2
    assert message in err
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir()), "nothing was left behind"


def test_what_cannot_be_drawn_is_left_out_and_named(run, rival_folders: list[Path], tmp_path, monkeypatch):
    def missing(_: RunRecord) -> DataSet:
        raise AggMatchError("digits is not in data.")

    monkeypatch.setattr(RunRecord, "data", missing)
    code, out, err = run("figures", rival_folders[0])
    assert code == 0
    kept = ["accuracy", "losses", "pseudo-labels", "queue-aggmatch-fold-0", "class-accuracy-digits-20-labels"]
    assert out.split() == [*(f"figures/{name}.svg" for name in kept), "figures/captions.md"]
    captions = (tmp_path / "figures/captions.md").read_text()
    assert re.findall(r"^## (.*).svg", captions, re.MULTILINE) == kept
    assert err == "Left out of predictions, labels, attention, embedding, explain: digits is not in data.\n"


def test_one_damaged_snapshot_does_not_take_other_runs_away(run, rival_folders: list[Path], tmp_path):
    shutil.copytree(rival_folders[0], tmp_path / "run")
    read_runs([tmp_path / "run"])[0].snapshots[0].write_bytes(b"no checkpoint")
    code, out, err = run("figures", "run", rival_folders[1], "--only", "embedding,attention")
    assert code == 0
    assert out.split() == ["figures/embedding-fixmatch-fold-0.svg", "figures/captions.md"]
    assert err.startswith("Left out of attention, embedding: Cannot read run/snapshots/step-00000003.safetensors")


def test_panels_raise_what_cannot_be_drawn_where_nobody_is_told(rivals, monkeypatch):
    def missing(_: RunRecord) -> DataSet:
        raise AggMatchError("digits is not in data.")

    monkeypatch.setattr(RunRecord, "data", missing)
    with pytest.raises(AggMatchError, match="digits is not in data."):
        list(analysis.panels(rivals, ["embedding"]))


def test_a_damaged_snapshot_is_named(run, rival_folders: list[Path], tmp_path):
    shutil.copytree(rival_folders[0], tmp_path / "run")
    (damaged, *_) = read_runs([tmp_path / "run"])[0].snapshots
    damaged.write_bytes(b"\x10\x00\x00\x00\x00\x00\x00\x00{}")
    code, _, err = run("figures", "run", "--only", "embedding")
    assert code == 2
    assert "step-00000003.safetensors: not a checkpoint" in err


def test_a_file_in_the_way_of_the_folder_is_named(run, rival_folders: list[Path], tmp_path):
    (tmp_path / "figures").write_text("in the way")
    code, _, err = run("figures", rival_folders[0], "--only", "curves")
    assert code == 2
    assert "Cannot write to figures: File exists. Choose another --out." in err
