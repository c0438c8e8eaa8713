"""Own images from the command line: train on a folder, predict new files, export."""

import csv
import json
import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from aggmatch.data.own.images import read_folder

QUICK = ["--steps", "6", "--set", "model.name=small-4", "--set", "data.side=8", "--set", "train.batch=4"]
SMALL_QUEUE = ["--set", "method.slots=8", "--set", "method.subsets=2"]


def paint(file: Path, grey: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(grey).integers(grey, grey + 50, (12, 9, 3)).astype(np.uint8)).save(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Dark and light images, five of each labelled and ten not."""
    for k in range(5):
        paint(tmp_path / f"photos/dark/{k}.png", k)
        paint(tmp_path / f"photos/light/{k}.jpg", 180 + k)
    for k in range(10):
        paint(tmp_path / f"photos/unlabeled/{k}.png", k if k % 2 else 180 + k)
    return tmp_path / "photos"


@pytest.fixture
def trained(run, photos) -> Path:
    code, _, err = run("train", "photos", "--out", "run", *QUICK, *SMALL_QUEUE)
    assert code == 0, err
    return photos.parent / "run"


def training_names(photos: Path) -> set[str]:
    return set(read_folder(photos, 8, 0.2).train.names)


def test_training_on_a_folder_uses_all_its_labels(trained, photos):
    summary = json.loads((trained / "summary.json").read_text())
    assert summary["labels"] == 8
    assert summary["data"] == str(photos), "the whole path, so that the run resumes from anywhere"
    assert set(summary["class_accuracy"]) == {"dark", "light"}
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert "pseudo_coverage" in last
    assert "pseudo_precision" not in last, "the true classes of unlabelled images are unknown"


def test_the_run_of_a_folder_is_named_after_it(run, photos):
    code, out, _ = run("train", "photos", "--method", "supervised", *QUICK)
    assert code == 0
    assert "supervised on photos, " in out
    assert (photos.parent / "runs/photos-all-supervised-fold0/summary.json").exists()


def test_a_folder_run_resumes_from_another_place(run, trained, photos, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (trained / "summary.json").unlink()
    monkeypatch.chdir(tmp_path / "elsewhere")
    code, _, err = run("train", "--resume", "--out", "../run")
    assert code == 0, err
    assert (trained / "summary.json").exists()


def test_a_folder_that_moved_is_resumed_from_its_new_place_and_remembered(run, trained, photos, tmp_path):
    (trained / "summary.json").unlink()
    photos.rename(tmp_path / "pictures")
    code, _, err = run("train", "--resume", "--out", "run")
    assert code == 2
    assert str(photos) in err
    assert "--resume --out run" in err
    code, _, err = run("train", "pictures", "--resume", "--out", "run")
    assert code == 0, err
    assert json.loads((trained / "config.json").read_text())["data"]["name"] == str(tmp_path / "pictures")
    assert run("evaluate", "run")[0] == 0


def test_other_images_in_a_new_place_fail_and_the_run_keeps_its_old_place(run, trained, photos, tmp_path):
    photos.rename(tmp_path / "pictures")
    paint(tmp_path / "pictures/unlabeled/3.png", 77)
    code, _, err = run("train", "pictures", "--resume", "--out", "run")
    assert code == 2
    assert "split.json" in err
    assert json.loads((trained / "config.json").read_text())["data"]["name"] == str(photos)


def test_a_folder_named_by_a_setting_is_stored_with_its_whole_path(run, photos):
    code, _, err = run("train", "--set", "data.name=photos", "--method", "supervised", "--out", "run", *QUICK)
    assert code == 0, err
    assert json.loads((photos.parent / "run/config.json").read_text())["data"]["name"] == str(photos)


def test_a_folder_that_changed_is_not_resumed(run, trained, photos):
    (trained / "summary.json").unlink()
    paint(photos / "unlabeled/new.png", 3)
    code, _, err = run("train", "--resume", "--out", "run")
    assert code == 2
    assert "the folder changed: 1 more image" in err


def test_images_that_changed_places_are_noticed(run, trained, photos):
    (photos / "dark").rename(photos / "swap")
    (photos / "light").rename(photos / "dark")
    (photos / "swap").rename(photos / "light")
    code, _, err = run("evaluate", "run")
    assert code == 2
    assert "split.json" in err
    (trained / "summary.json").unlink()
    code, _, err = run("train", "--resume", "--out", "run")
    assert code == 2
    assert "the folder changed: other images or labels" in err


def test_changed_test_images_give_a_warning_and_cannot_be_resumed_with(run, trained, photos):
    (name, *_) = read_folder(photos, 8, 0.2).test.names
    code, _, err = run("evaluate", "run")
    assert (code, err) == (0, "")
    paint(photos / name, 99)
    code, _, err = run("evaluate", "run")
    assert code == 0
    assert err.startswith("Warning: the test images of ")
    (trained / "summary.json").unlink()
    code, _, err = run("train", "--resume", "--out", "run")
    assert code == 2
    assert str(photos) in err
    assert "test images" in err


def test_a_class_may_have_the_name_of_a_column(run, tmp_path):
    for k in range(3):
        paint(tmp_path / f"odd/file/{k}.png", k)
        paint(tmp_path / f"odd/class/{k}.png", 180 + k)
    assert run("train", "odd", "--out", "run", *QUICK, *SMALL_QUEUE)[0] == 0
    assert run("predict", "run", "odd/file/0.png", "--all", "--out", "table.JSON")[0] == 0
    (row,) = json.loads(Path("table.JSON").read_text())
    assert (row["file"], row["class"] in ("file", "class")) == ("odd/file/0.png", True)
    assert row["p(file)"] + row["p(class)"] == pytest.approx(1, abs=1e-5)


def test_a_model_is_evaluated_on_another_folder(run, trained, tmp_path):
    for k in range(3):
        paint(tmp_path / f"new/light/{k}.png", 190 + k)
    code, out, err = run("evaluate", "run", "new")
    assert (code, err) == (0, "")
    predictions = json.loads(run("predict", "run", "new", "--out", "table.json") and Path("table.json").read_text())
    right = 100 * sum(row["class"] == "light" for row in predictions) / 3
    assert f"{right:.2f} % of 3 images in new; mean over classes {right:.2f} %." in out
    assert re.search(r"dark +0 +–", out)
    assert re.search(rf"light +3 +{right:.2f}", out)


@pytest.mark.parametrize(
    ("folder", "message"), [("nowhere", "nowhere"), ("photos", "'unlabeled'"), ("empty", "empty/dark")]
)
def test_a_folder_that_does_not_fit_the_model_fails(run, trained, folder, message):
    Path("empty").mkdir()
    code, _, err = run("evaluate", "run", folder)
    assert code == 2
    assert message in err


def test_a_run_folder_cannot_be_inside_the_folder_of_images(run, photos):
    code, _, err = run("train", "photos", "--out", "photos/runs/mine", *QUICK)
    assert code == 2
    assert "photos/runs/mine" in err
    assert not (photos / "runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["export", "run", "--out", "run/model.safetensors"], ".onnx"),
        (["predict", "run", "photos/dark", "--out", "run/config.json"], "run/config.json"),
        (["predict", "run", "photos/dark", "--out", "/proc/p.csv"], "/proc/p.csv"),
    ],
)
def test_no_file_of_the_run_is_overwritten(run, trained, words, message):
    before = {path: path.read_bytes() for path in trained.iterdir() if path.is_file()}
    code, _, err = run(*words)
    assert code == 2
    assert message in err
    assert {path: path.read_bytes() for path in trained.iterdir() if path.is_file()} == before


def test_new_files_are_predicted(run, trained, tmp_path):
    paint(tmp_path / "new/a.png", 2)
    paint(tmp_path / "new/deep/b.png", 190)
    (tmp_path / "new/broken.png").write_text("no image")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        code, out, err = run("predict", "run", "new", "photos/dark/1.png")
    assert code == 0
    assert "1 of 4" in err
    assert "new/broken.png" in err
    assert [line.split()[0] for line in out.splitlines() if ".png" in line] == [
        "new/a.png",
        "new/deep/b.png",
        "photos/dark/1.png",
    ]


@pytest.mark.parametrize("suffix", ["csv", "json"])
def test_predictions_are_written_with_all_probabilities(run, trained, tmp_path, suffix):
    code, out, err = run("predict", "run", "photos/unlabeled", "--all", "--out", f"deep/p.{suffix}")
    assert (code, err) == (0, "")
    assert out == f"10 of 10 images: deep/p.{suffix}\n"
    text = (tmp_path / f"deep/p.{suffix}").read_text()
    rows = list(csv.DictReader(text.splitlines())) if suffix == "csv" else json.loads(text)
    assert len(rows) == 10
    for row in rows:
        dark, light = float(row["p(dark)"]), float(row["p(light)"])
        assert dark + light == pytest.approx(1, abs=1e-5)
        assert row["class"] == ("dark" if dark > light else "light")
        assert float(row["probability"]) == max(dark, light)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "missing"], "missing"),
        (["run", "photos/dark", "--out", "p.txt"], "p.txt"),
        (["photos", "photos/dark"], "photos/config.json"),
        (["run", "empty"], "empty"),
    ],
)
def test_a_failed_prediction_names_what_is_wrong(run, trained, tmp_path, words, message):
    (tmp_path / "empty").mkdir()
    code, _, err = run("predict", *words)
    assert code == 2
    assert message in err


def test_a_model_is_exported_and_predicts_the_same(run, trained, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    code, out, err = run("export", "run")
    assert code == 0, err
    assert "`probabilities` of dark, light" in out
    session = onnxruntime.InferenceSession(trained / "model.onnx", providers=["CPUExecutionProvider"])
    assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == ["dark", "light"]
    assert run("predict", "run", "photos/unlabeled", "--all", "--out", "p.json")[0] == 0
    expected = json.loads((tmp_path / "p.json").read_text())

    from aggmatch.data.own.folder import find_images
    from aggmatch.data.own.pixels import decode_all

    pixels, _ = decode_all(find_images(tmp_path / "photos/unlabeled"), 8, 3)
    (probs,) = session.run(None, {"images": pixels.numpy()})
    assert probs[:, 0].tolist() == pytest.approx([row["p(dark)"] for row in expected], abs=1e-4)


def test_a_report_on_a_long_log_without_the_truth_is_written(run, photos, tmp_path):
    assert (
        run("train", "photos", "--out", "run", *QUICK, *SMALL_QUEUE, "--steps", "24", "--set", "train.log_every=2")[0]
        == 0
    )
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) >= 12
    code, _, err = run("report", "run", "--out", "page.html")
    assert code == 0, err


def test_the_report_of_a_folder_shows_what_needs_no_true_classes(run, trained, tmp_path):
    code, _, err = run("report", "run", "--out", "page.html")
    assert code == 0
    assert "unlabelled images" in err
    page = (tmp_path / "page.html").read_text()
    assert "learned photos from 8 labels" in page
    assert "Coverage, %" in page
    code, out, err = run("figures", "run", "--out", "pictures")
    assert code == 0
    assert "pictures/confusion-aggmatch-fold-0.svg" in out
    assert "unlabelled images" in err
    assert "Doubtful labels, aggmatch fold 0" in page
    assert "Shown, out of 10: the 2 with the least consensus" in page


def test_a_run_is_reported_after_its_folder_has_got_another_class(run, trained, photos, tmp_path):
    for k in range(5):
        paint(photos / f"middle/{k}.png", 90 + k)
    assert run("train", "--from", "run", "--out", "next", *QUICK, *SMALL_QUEUE)[0] == 0
    code, _, err = run("report", "run", "next", "--out", "page.html")
    assert code == 0, err
    assert "trained with the classes dark, light, but photos has dark, light, middle now" in err
    page = (tmp_path / "page.html").read_text()
    assert "from run, fold 0" in page, "the later run is called by where it started, and has its results"


@pytest.mark.parametrize("word", ["12", "unlabeled/4.png", "photos/unlabeled/4.png"])
def test_an_image_is_explained_by_its_number_or_its_file(run, trained, word):
    code, out, err = run("explain", "run", word)
    assert code == 0, err
    assert "Image unlabeled/4.png, of unknown class" in out
    assert "dark/" in out or "light/" in out, "the queue entries have file names too"


@pytest.mark.parametrize(
    ("word", "message"),
    [("unlabeled/99.png", "'unlabeled/99.png'"), ("3.png", "'3.png'"), ("99", "'99'"), ("photos/HELD", "test image")],
)
def test_explaining_an_unknown_image_names_it(run, trained, photos, word, message):
    held = sorted({"dark/0.png", "dark/1.png", "dark/2.png", "dark/3.png", "dark/4.png"} - training_names(photos))[0]
    code, _, err = run("explain", "run", word.replace("HELD", held))
    assert code == 2
    assert message in " ".join(err.split())
