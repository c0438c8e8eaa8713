"""What to label next, and which labels may be wrong, from the command line."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.conftest import stripes

from aggmatch.data.own.labels_file import read_labels

BACKBONE = f"{Path(__file__).parents[1] / 'training/frozen_backbone.py'}:Bands"
FROZEN = ["--set", f"model.name={BACKBONE}", "--set", "train.backbone=frozen", "--set", "data.side=8"]
CLASSES = ("rows", "columns", "diagonals")
EACH = 12


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Twelve images of each of three classes, none with a label."""
    images = stripes(3 * EACH, 0)
    (tmp_path / "photos").mkdir()
    for position, label in enumerate(images.labels.tolist()):
        file = tmp_path / f"photos/{position:02d}-{CLASSES[label]}.png"
        Image.fromarray(images.pixels[position, 0].numpy()).save(file)
    return tmp_path / "photos"


def fill_in(table: Path, wrong: tuple[str, ...] = ()) -> None:
    """Label the images of a table by their names; the named ones as the next class."""
    rows = [["file", "label"]]
    for row in read_labels(table):
        label = row.file.split("-")[1].removesuffix(".png")
        rows.append([row.file, CLASSES[(CLASSES.index(label) + 1) % 3] if row.file in wrong else label])
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(rows)


def train(run, *words: object, use: str = "frozen") -> tuple[str, str]:
    steps = ["--method", "supervised", "--set", "train.batch=6", "--set", "views.cached=1"]
    use = f"train.backbone={use}"
    code, out, err = run("train", *words, *steps, *FROZEN, "--set", use, "--allow-code", BACKBONE)
    assert code == 0, err
    return out, err


def test_the_first_images_to_label_are_of_different_classes(run, photos):
    code, out, err = run("suggest", "photos", "--n", "3", *FROZEN)
    assert code == 0, err
    assert out.splitlines() == [
        "3 images to label next: suggestions.html shows them. Fill in suggestions.csv, then:",
        "  aggmatch train photos --labels-file suggestions.csv",
    ]
    rows = read_labels(Path("suggestions.csv"))
    assert {row.file.split("-")[1] for row in rows} == {"rows.png", "columns.png", "diagonals.png"}
    assert [row.label for row in rows] == [""] * 3
    page = Path("suggestions.html").read_text()
    assert re.findall(r'alt="([^"]+)"', page) == [row.file for row in rows]
    assert page.count("data:image/jpeg;base64,") == 3
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


def test_the_filled_in_table_trains_and_the_run_suggests_others_with_the_labels_so_far(run, photos):
    assert run("suggest", "photos", "-n", "12", *FROZEN)[0] == 0
    fill_in(Path("suggestions.csv"))
    out, _ = train(run, "photos", "--labels-file", "suggestions.csv", "--steps", "5", "--out", "first")
    assert "aggmatch train --from first --set train.backbone=finetune" in out
    code, out, err = run("suggest", "first", "-n", "4", "--out", "next/more", "--allow-code", BACKBONE)
    assert code == 0, err
    assert "aggmatch train --from first --labels-file next/more.csv" in out
    before = {row.file: row.label for row in read_labels(Path("suggestions.csv"))}
    rows = read_labels(Path("next/more.csv"))
    assert [row.label for row in rows[:4]] == [""] * 4
    assert not {row.file for row in rows[:4]} & set(before)
    assert {row.file: row.label for row in rows[4:]} == before  # test images of the run included
    fill_in(Path("next/more.csv"))
    out, _ = train(run, "--from", "first", "--labels-file", "next/more.csv", "--steps", "5", "--out", "second")
    assert "supervised on photos, 13 labels" in out


def test_folders_of_classes_are_labels_too(run, photos):
    for file in sorted(photos.glob("*-rows.png")):
        (photos / "rows").mkdir(exist_ok=True)
        file.rename(photos / "rows" / file.name)
    assert run("suggest", "photos", "-n", "2", *FROZEN)[0] == 0
    rows = read_labels(Path("suggestions.csv"))
    assert {row.file.split("-")[1] for row in rows[:2]} == {"columns.png", "diagonals.png"}
    assert [row.label for row in rows[2:]] == ["rows"] * EACH


def test_test_images_are_not_suggested(run, photos):
    (photos / "test/rows").mkdir(parents=True)
    for file in sorted(photos.glob("*-rows.png")):
        file.rename(photos / "test/rows" / file.name)
    assert run("suggest", "photos", "-n", "100", *FROZEN)[0] == 0
    assert not any("rows" in row.file for row in read_labels(Path("suggestions.csv")))


def test_a_table_that_exists_is_never_overwritten(run, photos):
    Path("suggestions.csv").write_text("file,label\na.png,rose\n")
    code, _, err = run("suggest", "photos", *FROZEN)
    assert code == 2
    assert "suggestions.csv exists already and may hold labels. Choose another --out." in err
    assert Path("suggestions.csv").read_text() == "file,label\na.png,rose\n"


def test_files_that_cannot_be_written_are_an_error_before_features_are_computed(run, photos):
    Path("next.html").mkdir()
    code, _, err = run("suggest", "photos", "--out", "next", *FROZEN)
    assert (code, err) == (
        2,
        "Error: Cannot write next.html: it is a folder. Choose another place. On the command line: --out\n",
    )
    assert not Path("next.csv").exists()
    code, _, err = run("doubts", "nowhere", "--out", "next")
    assert (code, "Cannot write next.html" in err) == (2, True)


def test_folders_that_are_no_classes_need_a_table(run, photos):
    (photos / "2021").mkdir()
    for file in sorted(photos.glob("*.png")):
        file.rename(photos / "2021" / file.name)
    code, _, err = run("suggest", "photos", *FROZEN)
    assert code == 2
    assert f"All {3 * EACH} images of {photos} have a label." in err
    Path("labels.csv").write_text("file,label\n")
    assert run("suggest", "photos", "--labels-file", "labels.csv", *FROZEN)[0] == 0


def test_without_pretrained_weights_the_next_step_is_named(run, photos):
    code, _, err = run("suggest", "photos", "--set", "train.backbone=scratch")
    assert code == 2
    assert "pip install" in err
    assert "Or train first" in err


@pytest.mark.parametrize(("source", "expected"), [("photoz", "There is no photoz"), ("a.txt", "not a folder of image")])
def test_something_else_is_refused(source: str, expected: str, run, tmp_path: Path):
    (tmp_path / "a.txt").write_text("")
    code, _, err = run("suggest", source, *FROZEN)
    assert code == 2
    assert expected in err


def test_doubts_name_a_wrong_label_and_the_right_one(run, photos):
    for name in CLASSES:
        (photos / "test" / name).mkdir(parents=True)
        file = min(photos.glob(f"*-{name}.png"))
        file.rename(photos / "test" / name / file.name)
    assert run("suggest", "photos", "-n", "24", *FROZEN)[0] == 0
    wrong = read_labels(Path("suggestions.csv"))[7].file
    fill_in(Path("suggestions.csv"), wrong=(wrong,))
    train(run, "photos", "--labels-file", "suggestions.csv", "--steps", "30", "--out", "first")
    code, out, err = run("doubts", "first", "--allow-code", BACKBONE)
    assert code == 0, err
    with Path("doubts.csv").open(newline="") as file:
        first, *_ = csv.DictReader(file)
    right = wrong.split("-")[1].removesuffix(".png")
    assert (first["file"], first["suggested"]) == (wrong, right)
    assert first["label"] == CLASSES[(CLASSES.index(right) + 1) % 3]
    assert "of 24 labels may be wrong: doubts.html shows them; also in doubts.csv." in out
    assert f"<b>{first['label']} → {right}?</b>" in Path("doubts.html").read_text()
    fill_in(Path("suggestions.csv"))  # corrected, before another run
    _, out, _ = run("doubts", "first", "--out", "again", "--allow-code", BACKBONE)
    assert wrong not in out


def test_images_of_an_array_are_suggested_by_their_rows(run):
    images = stripes(12, 0)
    np.savez("data.npz", images=images.pixels[:, 0].numpy(), labels=np.array([0, 1, 2] * 2 + [-1] * 6))
    train(run, "data.npz", "--out", "first")
    code, out, err = run("suggest", "first", "-n", "2", "--allow-code", BACKBONE)
    assert code == 0, err
    assert "--labels-file" not in out, "no table can label images that are no files"
    rows = read_labels(Path("suggestions.csv"))
    assert [row.label for row in rows[:2]] == ["", ""]
    assert {row.file for row in rows if row.label} == {f"row {number}" for number in range(6)}


def test_a_run_from_scratch_is_judged_by_its_first_snapshot(run):
    quick = ["--method", "supervised", "--labels", "40", "--steps", "20"]
    assert run("train", "digits", "--out", "first", "--quiet", *quick)[0] == 0
    code, out, err = run("doubts", "first")
    assert (code, err) == (0, "")
    assert "of 40 labels" in out
    code, out, err = run("suggest", "first", "-n", "3")
    assert code == 0, err
    assert "aggmatch train" not in out, "no table can label images that are no files"
    assert len([row for row in read_labels(Path("suggestions.csv")) if not row.label]) == 3
    for file in Path("first/snapshots").iterdir():
        file.unlink()
    code, _, err = run("doubts", "first")
    assert code == 2
    assert "runtime.snapshots=[0.1]" in err


def test_from_and_resume_exclude_each_other(run):
    code, _, err = run("train", "--from", "a", "--resume")
    assert code == 2
    assert "--from starts a new run and --resume continues one" in err


def test_without_out_a_run_from_an_earlier_one_has_the_next_number(run):
    quick = ["--steps", "2", "--quiet"]
    assert run("train", "digits", "--method", "supervised", *quick)[0] == 0
    assert run("train", "--from", "runs/digits-10-supervised-fold0", *quick)[0] == 0
    assert Path("runs/digits-10-supervised-fold0-2/summary.json").exists()


@pytest.mark.parametrize("use", ["frozen", "finetune"])
def test_with_few_test_images_the_accuracy_is_estimated_too(run, photos, use: str):
    table = Path("labels.csv")
    table.write_text("\n".join(["file,label", *(f"{file.name}," for file in sorted(photos.iterdir())[:18])]))
    fill_in(table)
    out, _ = train(run, "photos", "--labels-file", table, "--out", "run", "--steps", "150", use=use)
    assert re.search(r"; then \S+ s to estimate the accuracy", out)
    said = re.search(r"Estimated accuracy on images without a label: (\d+) %, 95 % interval (\d+) to (\d+) %", out)
    assert said is not None
    accuracy, low, high = map(int, said.groups())
    assert accuracy > 70  # the classes are easy to tell apart
    assert low < accuracy < high
    code, _, err = run("report", "run", "--allow-code", BACKBONE)
    assert code == 0, err
    assert f"{low} to {high}&nbsp;%" in Path("run/report.html").read_text()


def test_ctrl_c_skips_the_estimate_and_resuming_makes_it(run, photos, monkeypatch: pytest.MonkeyPatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    table = Path("labels.csv")
    table.write_text("\n".join(["file,label", *(f"{file.name}," for file in sorted(photos.iterdir())[:18])]))
    fill_in(table)
    with monkeypatch.context() as patch:
        patch.setattr("aggmatch.training.crossval.cross_validate", interrupt)
        out, _ = train(run, "photos", "--labels-file", table, "--out", "run", "--steps", "2")
    assert "aggmatch train --resume --out run" in out
    assert Path("run/summary.json").exists()
    assert not Path("run/estimate.json").exists()
    code, out, err = run("train", "--resume", "--out", "run", "--allow-code", BACKBONE)
    assert code == 0, err
    assert "Estimated accuracy" in out


def test_with_a_few_labels_or_enough_test_images_nothing_is_estimated(run, photos):
    table = Path("labels.csv")
    table.write_text("\n".join(["file,label", *(f"{file.name}," for file in sorted(photos.iterdir())[:6])]))
    fill_in(table)
    out, _ = train(run, "photos", "--labels-file", table, "--out", "few", "--steps", "2")
    assert "Estimated" not in out
    for position, file in enumerate(sorted(photos.iterdir())[6:]):
        label = CLASSES[position % 3]
        (photos / "test" / label).mkdir(parents=True, exist_ok=True)
        file.rename(photos / "test" / label / file.name)
    out, _ = train(run, "photos", "--labels-file", table, "--out", "tested", "--steps", "2")
    assert "Estimated" not in out
    assert not Path("tested/estimate.json").exists()
