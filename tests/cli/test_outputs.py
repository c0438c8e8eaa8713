"""Files that commands write: nothing is left behind by a refused command, and only regular files are replaced."""

import os
import shutil
from pathlib import Path

import pytest
from PIL import Image

FINISHED = Path(__file__).parents[1] / "fixtures" / "runs-0.1" / "finished"


@pytest.fixture
def place(run, tmp_path) -> Path:
    shutil.copytree(FINISHED, tmp_path / "run")
    Image.new("L", (8, 8)).save(tmp_path / "image.png")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "run", "missing.png", "--out", "new/folder/out.csv"],
        ["predict", "nowhere", "image.png", "--out", "new/folder/out.csv"],
        ["predict", "run", "image.png", "--out", "new/folder/out.txt"],
        ["export", "nowhere", "--out", "new/folder/out.onnx"],
        ["report", "nowhere", "--out", "new/folder/out.html"],
        ["results", "nowhere", "--out", "new/folder/out.jsonl"],
        ["explain", "run", "999999", "--out", "new/folder/out.png"],
    ],
    ids=" ".join,
)
def test_a_refused_command_creates_no_folder(run, place, words):
    code, _, err = run(*words)
    assert code == 2, err
    assert not (place / "new").exists()


def test_the_folder_of_an_output_is_created(run, place):
    assert run("predict", "run", "image.png", "--out", "new/folder/out.csv")[0] == 0
    assert (place / "new/folder/out.csv").exists()


@pytest.mark.parametrize("kind", ["a link", "a FIFO"])
@pytest.mark.parametrize(
    "words", [["predict", "run", "image.png"], ["results", "run"], ["report", "run"]], ids=" ".join
)
def test_an_output_never_replaces_something_special(run, place, words, kind):
    out = place / {"predict": "out.csv", "results": "out.jsonl", "report": "out.html"}[words[0]]
    (place / "mine").write_text("mine")
    out.symlink_to("mine") if kind == "a link" else os.mkfifo(out)
    code, _, err = run(*words, "--out", out)
    assert code == 2
    assert f"Cannot write {out}: it is " in err
    assert out.is_symlink() if kind == "a link" else out.is_fifo()
    assert (place / "mine").read_text() == "mine"


def test_names_of_files_with_control_characters_are_shown_and_not_obeyed(run, place):
    (place / "image.png").rename(place / "a\x1b[2Jb.png")
    code, out, err = run("predict", "run", "a\x1b[2Jb.png")
    assert code == 0, err
    assert r"a\x1b[2Jb.png" in out
    assert "\x1b" not in out
    code, out, err = run("predict", "run", "missing\x1b]0;x\x07.png")
    assert code == 2
    assert r"missing\x1b]0;x\x07.png" in err
    assert "\x1b" not in out + err


def test_a_run_folder_may_have_any_name(run, place):
    folder = os.fsdecode(b"r\xff<b>\x1b[2J\n")
    (place / "run").rename(folder)
    for words in (["results", folder], ["evaluate", folder], ["figures", folder, "--only", "accuracy", "--out", "f"]):
        code, out, err = run(*words)
        assert code == 0, err
        assert "\x1b" not in out + err
    assert run("report", folder, "--out", "page.html", "-q")[0] == 0
    page = Path("page.html").read_text(encoding="utf-8")
    assert "<b>\x1b" not in page
