"""What `train` says about own images, and every form in which it takes them."""

import json
import os
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

QUICK = ["--method", "supervised", "--steps", "2", "--set", "model.name=small-4", "--set", "data.side=8"]
QUICK += ["--set", "train.batch=4"]


def paint(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 9, 3)).astype(np.uint8)).save(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five labelled images of each of two classes, and six others."""
    for k in range(5):
        paint(tmp_path / f"photos/hat/{k}.png", k)
        paint(tmp_path / f"photos/dress/{k}.png", 100 + k)
    for k in range(6):
        paint(tmp_path / f"photos/unlabeled/{k}.png", 200 + k)
    return tmp_path / "photos"


def setting(run_folder: Path, name: str) -> object:
    return json.loads((run_folder / "config.json").read_text())["data"][name]


def test_train_first_says_what_it_read_and_what_looks_wrong(run, photos):
    shutil.copy(photos / "hat/1.png", photos / "dress/copy.png")
    paint(photos / "testing/1.png", 300)
    paint(photos / "testing/2.png", 301)
    code, out, err = run("train", "photos", "--out", "run", *QUICK)
    assert code == 0, err
    assert out.startswith("3 classes: dress 5, hat 4, testing 1; 6 unlabelled; 3 test.\n")
    assert "Warning: 'testing' is used as a class. If it holds test images, call the folder 'test'." in err
    assert re.search(r"Warning: 1 (image is in two classes|test image is also among the training images)", err)
    assert "Warning: 3 test images cannot tell how good a model is: 2 of 3 right, 66.7 %" in err
    assert re.search(r"test accuracy of 3 images, 95 % interval \d+\.\d to \d+\.\d % ", out)


@pytest.mark.filterwarnings("always")
def test_a_command_that_reads_the_images_twice_warns_once(run, photos):
    (photos / "unlabeled/broken.png").write_bytes(b"")
    assert run("train", "photos", "--out", "run", *QUICK, "--quiet")[0] == 0
    code, _, err = run("report", "run")
    assert (code, err.count("Warning: 1 of 17 files cannot be read")) == (0, 1)


def test_train_says_that_a_table_in_the_folder_is_not_used(run, photos):
    (photos / "labels.csv").write_text("file,label\nhat/1.png,cap\ndress/1.png,gown\n")
    code, out, err = run("train", "photos", "--out", "run", *QUICK)
    assert (code, out[:16]) == (0, "2 classes: dress")
    assert f"Warning: {photos / 'labels.csv'} is not used" in err
    _, _, err = run("train", "photos", "--labels-file", "photos/labels.csv", "--set", "data.holdout=0", *QUICK)
    assert "is not used" not in err


def test_a_quiet_train_and_a_finished_run_say_nothing(run, photos):
    code, out, err = run("train", "photos", "--out", "run", "--quiet", *QUICK)
    assert (code, out) == (0, "")
    assert err.startswith("Warning: 2 test images")
    assert run("train", "--resume", "--out", "run", "--quiet") == (0, "", "")


def test_other_data_sets_are_not_summarised(run):
    code, out, err = run("train", "digits", "--method", "supervised", "--steps", "2", "--out", "run")
    assert (code, err) == (0, "")
    assert "classes" not in out


def test_labels_come_from_a_table(run, photos, tmp_path):
    (tmp_path / "labels.csv").write_text("label,file\na,hat/0.png\na,hat/1.png\nb,dress/0.png\nb,unlabeled/0.png\n")
    code, out, err = run("train", "photos", "--labels-file", "labels.csv", "--out", "run", *QUICK)
    assert code == 0, err
    assert out.startswith("2 classes: a 1, b 1; 12 unlabelled; 2 test.\n")
    assert setting(tmp_path / "run", "labels_file") == str(tmp_path / "labels.csv")


def test_a_table_that_moved_with_its_images_is_resumed_from_and_remembered(run, photos, tmp_path):
    table = tmp_path / "photos.csv"
    table.write_text("label,file\na,hat/0.png\na,hat/1.png\nb,dress/0.png\nb,unlabeled/0.png\n")
    assert run("train", "photos", "--labels-file", "photos.csv", "--out", "run", *QUICK)[0] == 0
    (tmp_path / "run/summary.json").unlink()
    table.rename(tmp_path / "new.csv")
    code, _, err = run("train", "--resume", "--out", "run")
    assert code == 2
    assert "There is no table of labels" in err
    code, _, err = run("train", "photos", "--labels-file", "new.csv", "--resume", "--out", "run")
    assert code == 0, err
    assert setting(tmp_path / "run", "labels_file") == str(tmp_path / "new.csv")
    (tmp_path / "run/summary.json").unlink()
    (tmp_path / "new.csv").write_text("label,file\nb,hat/0.png\nb,hat/1.png\na,dress/0.png\na,unlabeled/0.png\n")
    code, _, err = run("train", "--resume", "--out", "run")
    assert code == 2
    assert "the folder changed: other images or labels" in err


def test_zip_and_npz_files_train_evaluate_predict_and_resume(run, photos, tmp_path):
    with zipfile.ZipFile("photos.zip", "w") as archive:
        for path in photos.rglob("*.png"):
            archive.write(path, path.relative_to(tmp_path))
    np.savez(
        "data.npz", images=np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), "uint8"), labels=np.arange(20) % 2
    )
    for name in ("photos.zip", "data.npz"):
        code, out, err = run("train", name, "--out", f"run-{name}", *QUICK)
        assert code == 0, err
        assert out.startswith("2 classes: ")
        assert setting(tmp_path / f"run-{name}", "name") == str(tmp_path / name)
        (tmp_path / f"run-{name}/summary.json").unlink()
        assert run("train", "--resume", "--out", f"run-{name}")[0] == 0
        assert run("evaluate", f"run-{name}")[0] == 0
    code, out, _ = run("predict", "run-photos.zip", "photos.zip")
    assert code == 0
    assert "photos.zip/hat/0.png" in out
    shutil.rmtree(photos / "unlabeled")
    with zipfile.ZipFile("more.zip", "w") as archive:
        for path in photos.rglob("*.png"):
            archive.write(path, path.relative_to(photos))
    code, out, _ = run("evaluate", "run-photos.zip", "more.zip")
    assert code == 0
    assert "% of 10 images in more.zip" in out


@pytest.mark.filterwarnings("always")
def test_a_folder_hidden_by_a_data_set_is_pointed_out(run, tmp_path):
    (tmp_path / "digits").mkdir()
    code, _, err = run("train", "digits", "--method", "supervised", "--steps", "2", "--out", "run")
    assert code == 0
    assert re.fullmatch(r"Warning: 'digits' is the data set .*write \./digits\n", err)


def test_a_class_whose_name_is_not_unicode_is_refused_before_training(run, photos, tmp_path):
    (photos / "hat").rename(photos / os.fsdecode(b"h\xe9"))
    code, _, err = run("train", "photos", "--out", "run", *QUICK)
    assert code == 2
    assert "not UTF-8" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("always")
def test_a_fifo_and_a_postscript_file_cost_only_themselves(run, photos, monkeypatch):
    monkeypatch.setattr("subprocess.check_call", None)
    os.mkfifo(photos / "unlabeled/fifo.jpg")
    (photos / "unlabeled/program.jpg").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")
    code, _, err = run("train", "photos", "--out", "run", *QUICK)
    assert code == 0
    assert re.search(r"2 of 18 files .*fifo\.jpg \(not a regular file\), .*program\.jpg \(not a JPEG", err)
    code, _, err = run("predict", "run", photos / "unlabeled/fifo.jpg")
    assert code == 2
    assert "fifo.jpg (not a regular file)" in err


# Without test images --------------------------------------------------------------------------------------------------


@pytest.fixture
def untested(run, photos) -> Path:
    code, out, err = run("train", "photos", "--set", "data.holdout=0", "--out", "run", *QUICK)
    assert code == 0, err
    assert out.startswith("2 classes: dress 5, hat 5; 6 unlabelled; no test images.\n")
    assert re.match(r".* is trained from scratch, .* steps: about \d", out.splitlines()[1])
    assert "accuracy not measured, without test images" in out
    assert "Warning: There are no test images" in err
    return photos.parent / "run"


def test_a_run_without_test_images_has_no_accuracy_and_predicts(run, untested):
    summary = json.loads((untested / "summary.json").read_text())
    assert (summary["accuracy"], summary["accuracy_median_of_last_20"], summary["class_accuracy"]) == (None, None, {})
    assert "accuracy_average" not in (untested / "metrics.jsonl").read_text()
    assert run("predict", "run", "photos/unlabeled")[0] == 0
    code, _, err = run("evaluate", "run")
    assert code == 2
    assert "has no test images. Name other images" in err


def test_a_run_without_test_images_resumes(run, untested):
    (untested / "summary.json").unlink()
    assert run("train", "--resume", "--out", "run")[0] == 0


def test_a_run_without_test_images_is_reported_and_listed_without_an_accuracy(run, untested, tmp_path):
    code, _, err = run("report", "run", "--out", "page.html")
    assert code == 0, err
    page = (tmp_path / "page.html").read_text()
    assert "its accuracy was not measured, because it has no test images" in page
    code, out, _ = run("results", "run")
    assert code == 0
    assert re.search(r"supervised\s+–\s+–", out)


def test_runs_with_and_without_test_images_are_reported_together(run, untested, tmp_path):
    assert run("train", "photos", "--out", "tested", *QUICK)[0] == 0
    code, _, err = run("report", "run", "tested", "--out", "page.html")
    assert code == 0, err


def test_folders_of_classes_without_an_image_are_named(run, tmp_path):
    for name in ("hat", "dress"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    code, _, err = run("train", "photos", "--out", "run", *QUICK)
    assert code == 2
    assert "Class 'dress'" in err


def test_methods_are_not_compared_without_test_images(run, photos):
    options = ["--methods", "supervised,fixmatch", "--set", "data.holdout=0", "--out", "runs"]
    code, _, err = run("compare", "photos", *options, *QUICK[2:])
    assert code == 2
    assert "has no test images, so methods cannot be compared" in err
