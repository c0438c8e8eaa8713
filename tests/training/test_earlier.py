"""Runs that start from an earlier one, and folders of images that changed since a run."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tests.conftest import dotted, stripes

from aggmatch.config import Layer
from aggmatch.data import load_for
from aggmatch.errors import AggMatchError
from aggmatch.settings import RunSettings, resolve
from aggmatch.training.begin import resume, start
from aggmatch.training.earlier import free_folder, taken_settings
from aggmatch.training.run import Run

QUICK = {"method.name": "supervised", "model.name": "small-4", "data.side": 8, "train.batch": 4, "train.steps": 3}
CLASSES = ("rows", "columns")


def save(images: torch.Tensor, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(images[0].numpy()).save(file)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Five labelled images of each of two classes, and twelve others."""
    images = stripes(66, 0)
    for k, name in enumerate(CLASSES):
        pixels = images.pixels[images.labels == k]
        for number in range(11):
            place = name if number < 5 else "unlabeled"
            save(pixels[number], tmp_path / f"photos/{place}/{name}-{number:02d}.png")
    return tmp_path / "photos"


def label(photos: Path, count: int) -> None:
    """Move unlabelled images of each class into its folder."""
    for name in CLASSES:
        for file in sorted((photos / "unlabeled").glob(f"{name}-*"))[:count]:
            file.rename(photos / name / file.name)


def settings(photos: Path, **changes: object) -> RunSettings:
    return resolve(QUICK | {"data.name": str(photos)} | dotted(changes))


def settings_from(run: Path, **changes: object) -> RunSettings:
    own = {"train.batch": 4, "train.steps": 3} | dotted(changes)
    return resolve([taken_settings(run), Layer("the test", own)])


def rewrite(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a JSON file as an older version would have written it, without a digest."""
    content = json.loads(file.read_text())
    change(content)
    content.pop("digest", None)
    file.write_text(json.dumps(content))


def complete(run: Run) -> Run:
    for _ in run.train():
        pass
    return run


def test_a_run_starts_with_both_networks_of_the_earlier_one(photos: Path, tmp_path: Path):
    earlier = complete(start(settings(photos), tmp_path / "a"))
    label(photos, 2)
    run = start(settings_from(tmp_path / "a"), tmp_path / "b")
    for before, now in ((earlier.state.online, run.state.online), (earlier.state.average, run.state.average)):
        for name, tensor in before.state_dict().items():
            assert torch.equal(tensor, now.state_dict()[name]), name
    assert run.state.steps_done == 0
    assert len(run.split.labeled) == len(earlier.split.labeled) + 4
    stored = json.loads((tmp_path / "b/config.json").read_text())
    assert stored["train"]["start_from"] == str(tmp_path / "a")


def test_it_takes_the_model_if_the_checkpoints_are_gone(photos: Path, tmp_path: Path):
    earlier = complete(start(settings(photos), tmp_path / "a"))
    shutil.rmtree(tmp_path / "a/checkpoints")
    run = start(settings_from(tmp_path / "a"), tmp_path / "b")
    expected = earlier.state.average.state_dict()["classifier.weight"]
    assert torch.equal(run.state.online.state_dict()["classifier.weight"], expected)


def test_it_keeps_the_test_images_however_many_labels_there_are(photos: Path, tmp_path: Path):
    earlier = complete(start(settings(photos), tmp_path / "a"))
    label(photos, 6)
    assert len(start(settings(photos), tmp_path / "other").data.test) > len(earlier.data.test)
    second = complete(start(settings_from(tmp_path / "a"), tmp_path / "b"))
    third = start(settings_from(tmp_path / "b"), tmp_path / "c")
    assert second.data.test.names == third.data.test.names == earlier.data.test.names
    assert second.split.test_fingerprint == earlier.split.test_fingerprint
    assert not set(second.data.test.names) & set(second.data.train.names)
    assert len(second.data.train) == len(earlier.data.train)


def test_it_can_be_resumed_and_read_without_the_earlier_folder(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    label(photos, 2)
    whole = start(settings_from(tmp_path / "a", train__steps=4), tmp_path / "b")
    next(whole.train())  # as if it was killed after the first step
    shutil.rmtree(tmp_path / "a")
    shutil.copytree(tmp_path / "b", tmp_path / "moved")
    run = complete(resume(tmp_path / "moved"))
    assert run.finished
    complete(whole)
    assert run.folder.model.read_bytes() == whole.folder.model.read_bytes()
    assert load_for(run.settings.data, "nowhere").test_fingerprint == run.split.test_fingerprint


def test_without_a_checkpoint_a_resumed_run_starts_from_the_earlier_one_again(photos: Path, tmp_path: Path):
    earlier = complete(start(settings(photos), tmp_path / "a"))
    label(photos, 2)
    start(settings_from(tmp_path / "a"), tmp_path / "b")
    again = resume(tmp_path / "b").state
    assert torch.equal(again.online.classifier.weight, earlier.state.online.classifier.weight)
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(AggMatchError, match="Cannot start from"):
        resume(tmp_path / "b")


def test_a_test_folder_decides_what_is_tested(photos: Path, tmp_path: Path):
    for name in CLASSES:
        (photos / "test" / name).mkdir(parents=True)
        first = min((photos / "unlabeled").glob(f"{name}-*"))
        first.rename(photos / "test" / name / first.name)
    complete(start(settings(photos), tmp_path / "a"))
    second = min((photos / "unlabeled").glob("rows-*"))
    second.rename(photos / "test/rows" / second.name)
    assert len(start(settings_from(tmp_path / "a"), tmp_path / "b").data.test) == 3


def test_test_images_that_are_gone_are_counted(photos: Path, tmp_path: Path):
    earlier = complete(start(settings(photos), tmp_path / "a"))
    (photos / earlier.data.test.names[0]).unlink()
    label(photos, 2)
    with pytest.warns(UserWarning, match=r"1 of 2 test images of .*split\.json are gone"):
        start(settings_from(tmp_path / "a"), tmp_path / "b")


def test_other_images_need_test_images_of_their_own(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    for k, name in enumerate(CLASSES):
        for number, pixels in enumerate(stripes(20, 1).pixels[k::2][:5]):
            save(pixels, tmp_path / f"others/{name}/{number}.png")
    changes = {"data__name": str(tmp_path / "others")}
    with pytest.warns(UserWarning, match="2 of 2"), pytest.raises(AggMatchError, match=r"data\.test_images=null"):
        start(settings_from(tmp_path / "a", **changes), tmp_path / "b")
    assert len(start(settings_from(tmp_path / "a", data__test_images=None, **changes), tmp_path / "b").data.test) == 2


def test_an_old_split_without_its_test_images_says_so(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    rewrite(tmp_path / "a/split.json", lambda split: split.pop("test_images"))
    with pytest.warns(UserWarning, match="does not list its test images"):
        start(settings_from(tmp_path / "a"), tmp_path / "b")


def test_a_new_class_starts_with_a_new_row_of_the_classifier(photos: Path, tmp_path: Path):
    earlier = complete(start(settings(photos), tmp_path / "a"))
    (photos / "lines").mkdir()
    for file in sorted((photos / "unlabeled").glob("rows-*"))[:2]:
        file.rename(photos / "lines" / file.name)
    run = start(settings_from(tmp_path / "a"), tmp_path / "b")
    assert run.data.classes == ("columns", "lines", "rows")
    for before, now in ((earlier.state.online, run.state.online), (earlier.state.average, run.state.average)):
        assert torch.equal(now.classifier.weight[[0, 2]], before.classifier.weight)
        assert torch.equal(now.classifier.bias[[0, 2]], before.classifier.bias)
    complete(run)


def test_a_run_with_no_class_in_common_cannot_be_started_from(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    for name in CLASSES:
        (photos / name).rename(photos / f"new {name}")
    with pytest.raises(AggMatchError, match="its classes are columns, rows, but now they are new columns, new rows"):
        start(settings_from(tmp_path / "a"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_another_network_cannot_start_from_a_run(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    with pytest.raises(AggMatchError, match="do not fit small-8"):
        start(settings_from(tmp_path / "a", model__name="small-8"), tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_folder_without_a_run_cannot_be_started_from(tmp_path: Path):
    with pytest.raises(AggMatchError, match="it holds no run"):
        taken_settings(tmp_path)


def test_a_run_that_saved_nothing_yet_cannot_be_started_from(photos: Path, tmp_path: Path):
    start(settings(photos), tmp_path / "a")
    with pytest.raises(AggMatchError, match="neither a checkpoint nor a model"):
        start(settings_from(tmp_path / "a"), tmp_path / "b")


def test_code_that_the_earlier_run_names_is_not_imported(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    rewrite(tmp_path / "a/config.json", lambda config: config["model"].update(name="/evil.py:Net"))
    with pytest.raises(AggMatchError, match=r"evil\.py:Net"):
        taken_settings(tmp_path / "a")


# Changed folders --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", [lambda photos, out: start(settings(photos), out), lambda _, out: resume(out)])
def test_a_folder_that_gained_labels_is_named_with_the_next_step(again, photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    label(photos, 2)
    with pytest.raises(AggMatchError, match="the folder changed: 4 more labels; start a new run from it") as caught:
        again(photos, tmp_path / "a")
    assert caught.value.options == f"--from {tmp_path / 'a'}, or --out OTHER"


def test_new_and_vanished_images_and_classes_are_counted(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    unlabeled = sorted((photos / "unlabeled").iterdir())
    for file in unlabeled[:3]:
        file.unlink()
    (photos / "diagonals").mkdir()
    for file in unlabeled[3:5]:
        file.rename(photos / "diagonals" / file.name)
    with pytest.raises(AggMatchError, match="folder changed: 1 more class, 2 more labels, 3 fewer images"):
        resume(tmp_path / "a")


def test_exchanged_images_are_noticed(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    save(stripes(3, 5).pixels[2], min((photos / "unlabeled").iterdir()))
    with pytest.raises(AggMatchError, match="folder changed: other images or labels"):
        resume(tmp_path / "a")


def test_an_unchanged_folder_can_be_resumed_with_any_size_of_images(photos: Path, tmp_path: Path):
    complete(start(settings(photos), tmp_path / "a"))
    with pytest.raises(AggMatchError, match="already holds a run"):
        start(settings(photos), tmp_path / "a")
    with pytest.raises(AggMatchError, match="already holds a run"):
        start(settings(photos, data__side=16), tmp_path / "a")
    assert resume(tmp_path / "a").finished


def test_a_run_on_something_else_is_not_compared(photos: Path, tmp_path: Path):
    start(resolve({"data.name": "digits", "method.name": "supervised"}), tmp_path / "a")
    with pytest.raises(AggMatchError, match="already holds a run"):
        start(settings(photos), tmp_path / "a")


def test_a_named_data_set_keeps_its_number_of_labels(tmp_path: Path):
    chosen = {"data.name": "digits", "data.labels": 40, "data.fold": 2, "method.name": "supervised", "train.steps": 1}
    complete(start(resolve(chosen), tmp_path / "a"))
    again = settings_from(tmp_path / "a")
    assert (again.data.labels, again.data.fold, again.data.test_images) == (40, 2, None)
    assert settings_from(tmp_path / "a", data__labels=50).data.labels == 50


def test_the_next_free_folder_has_a_number(photos: Path, tmp_path: Path):
    assert free_folder(tmp_path / "a") == tmp_path / "a"
    start(settings(photos), tmp_path / "a")
    start(settings(photos), tmp_path / "a-2")
    assert free_folder(tmp_path / "a") == tmp_path / "a-3"
