import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aggmatch.data import SOURCES, is_own_images, load, locate
from aggmatch.data.builtin import cifar, download
from aggmatch.data.builtin.cifar import CIFAR10, CIFAR10_ARCHIVE, read_cifar
from aggmatch.data.registry import name_clash
from aggmatch.errors import AggMatchError
from aggmatch.settings import resolve
from aggmatch.validate import InvalidValue

ROOT = Path(__file__).parents[2]


def error_of(name: str, folder: Path, **options) -> str:
    with pytest.raises(AggMatchError) as error:
        load(name, folder, **options)
    return str(error.value)


@pytest.mark.parametrize("name", SOURCES.names())
def test_every_source_describes_itself_in_one_sentence(name):
    source = SOURCES.load(name)
    assert source.name == name
    assert source.description.endswith(".")
    assert "\n" not in source.description
    assert source.train_size > source.test_size > 0
    assert set(source.noise_map) | set(source.noise_map.values()) <= set(source.classes)
    for archive in source.archives:
        assert archive.url.endswith(Path(archive.file).name)
        assert len(bytes.fromhex(archive.md5)) == 16


def test_the_noise_maps_are_those_of_the_papers():
    assert SOURCES.load("cifar10").noise_map == {
        "truck": "automobile",
        "bird": "airplane",
        "deer": "horse",
        "cat": "dog",
        "dog": "cat",
    }
    assert SOURCES.load("svhn").noise_map == {"2": "7", "3": "8", "5": "6", "6": "5", "7": "1"}
    assert SOURCES.load("digits").noise_map == SOURCES.load("svhn").noise_map
    assert not SOURCES.load("cifar100").noise_map


def test_a_flip_preserves_the_class_of_photographs_only():
    flipped = {name for name in SOURCES.names() if SOURCES.load(name).mirror}
    assert flipped == {"cifar10", "cifar100", "fashion-mnist", "stl10"}


def test_a_source_is_present_if_all_its_files_are(tmp_path):
    svhn = SOURCES.load("svhn")
    assert SOURCES.load("digits").present(tmp_path)
    assert not svhn.present(tmp_path)
    for archive in svhn.archives:
        (tmp_path / archive.file).touch()
    assert svhn.present(tmp_path)


def test_the_error_for_missing_files_names_files_address_size_and_options(tmp_path):
    message = error_of("cifar10", tmp_path)
    assert message.startswith(f"cifar10 is not in {tmp_path}: ")
    for part in (
        "cifar-10-python.tar.gz (or the folder cifar-10-batches-py)",
        "the download of 170 MB from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "data_dir",
    ):
        assert part in message


def test_the_error_names_only_missing_files(tmp_path):
    (tmp_path / "train_32x32.mat").touch()
    message = error_of("svhn", tmp_path)
    assert "test_32x32.mat. Allow the download of 64 MB from http://ufldl.stanford.edu" in message
    assert "train_32x32" not in message


def test_the_error_names_missing_files_of_an_incomplete_folder(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python/train").touch()
    assert "(the folder cifar-100-python exists but lacks test)" in error_of("cifar100", tmp_path)


def test_a_data_folder_that_is_a_file_or_missing_counts_as_empty(tmp_path):
    (tmp_path / "file").touch()
    assert "cifar10 is not in" in error_of("cifar10", tmp_path / "file")
    assert "cifar10 is not in" in error_of("cifar10", tmp_path / "nowhere")


def test_the_error_for_an_unknown_name_suggests_the_closest_one(tmp_path):
    assert "Unknown data set 'cifar11'. Did you mean 'cifar10'? See: aggmatch list data" in error_of(
        "cifar11", tmp_path
    )
    assert "Known: cifar10, cifar100, digits, fashion-mnist, mnist, stl10, svhn." in error_of("", tmp_path)


@pytest.mark.parametrize("name", [".", "some/where"])
def test_a_path_is_read_as_a_folder(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    assert {".": "must have a folder of images", "some/where": "There is no folder"}[name] in error_of(name, tmp_path)


def test_download_fetches_missing_files_and_reads_them(
    tmp_path, monkeypatch, loopback, pack, cifar10_batches, python2_pickle
):
    packed = tmp_path / "packed"
    pack(packed, {name: python2_pickle(batch) for name, batch in cifar10_batches.items()})
    loopback.content = packed.read_bytes()
    digest = hashlib.md5(loopback.content).hexdigest()
    archive = replace(CIFAR10_ARCHIVE, url=loopback.url, md5=digest, size=len(loopback.content))
    read = partial(read_cifar, archive=archive, label_key=b"labels", classes=10)
    monkeypatch.setattr(cifar, "CIFAR10", replace(CIFAR10, archives=(archive,), read=read))

    folder = tmp_path / "new/data"
    calls: list[tuple[int, int]] = []
    data = load("cifar10", folder, download=True, progress=lambda *step: calls.append(step))
    assert len(data.train) == 20
    assert calls[-1] == (archive.size, archive.size)
    assert [path.name for path in folder.iterdir()] == [archive.file]

    assert len(load("cifar10", folder, download=True).train) == 20
    assert len(loopback.requests) == 1

    (folder / archive.file).write_bytes(b"corrupt")
    assert "is not the published file" in error_of("cifar10", folder, download=True)
    assert (folder / archive.file).read_bytes() == b"corrupt"


def test_unpacked_files_are_not_downloaded_again(tmp_path, monkeypatch, unpack, cifar10_batches, python2_pickle):
    def fetch(*_arguments):
        pytest.fail("nothing is missing")

    monkeypatch.setattr(download, "fetch", fetch)
    unpack(tmp_path, {name: python2_pickle(batch) for name, batch in cifar10_batches.items()})
    assert len(load("cifar10", tmp_path, download=True).train) == 20


def test_a_known_name_wins_over_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_own_images("some/where")
    assert not is_own_images("flowers")
    for name in ("flowers", "digits"):
        (tmp_path / name).mkdir()
    assert is_own_images("flowers")
    assert not is_own_images("digits")
    assert not is_own_images("")
    assert resolve({"data.name": "digits"}).model.name == "small-16", "the recipe of the data set, not of a folder"


def test_a_folder_that_a_known_name_hides_is_pointed_out(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not name_clash("digits")
    (tmp_path / "digits").mkdir()
    assert name_clash("digits").endswith("For your folder of this name, write ./digits")
    assert not name_clash("./digits")
    assert is_own_images("./digits")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("clothez", "Unknown data set 'clothez'. Did you mean 'clothes'?"),
        ("deep/clothez", "There is no folder deep/clothez. Did you mean 'deep/clothes'?"),
        ("photo.zip", "There is no file photo.zip. Did you mean 'photos.zip'?"),
        ("x.zip", "There is no file x.zip. Name a folder of images, or a .zip or .npz file of them."),
        ("x.npz", "There is no file x.npz."),
        ("somewhere", "Or name a folder of images, or a .zip or .npz file of them."),
        ("labels.csv", "labels.csv is a table, not images. Name the folder of the images"),
        ("deep/labels.csv", "and the table as data.labels_file"),
        ("./cat.jpg", "./cat.jpg is not a folder of images, and does not end in .zip or .npz."),
        ("/gone/photos", "If the images of a run have moved, resume it with their new place"),
    ],
)
def test_the_error_for_images_that_are_not_there_speaks_of_folders_and_files(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clothes").mkdir()
    (tmp_path / "deep/clothes").mkdir(parents=True)
    for file in ("photos.zip", "cat.jpg"):
        (tmp_path / file).touch()
    assert message in error_of(name, tmp_path)


def test_a_table_of_labels_needs_own_images(tmp_path):
    with pytest.raises(InvalidValue, match=r"data\.labels_file needs a folder .*got labels\.csv for digits"):
        load("digits", tmp_path, labels_file="labels.csv")
    with pytest.raises(AggMatchError, match="Unknown data set 'photso'"):  # the folder is the first thing to correct
        load("photso", tmp_path, labels_file="labels.csv")


def test_packed_images_are_stored_with_their_whole_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert locate("photos.ZIP") == str(tmp_path / "photos.ZIP")
    assert locate("data.npz") == str(tmp_path / "data.npz")
    assert locate("digits") == "digits"


def test_importing_the_package_imports_no_reader():
    code = "import sys, aggmatch.data; print(*sys.modules)"
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    readers = {f"aggmatch.data.{name}" for name in ("cifar", "svhn", "download", "pickles", "digits")}
    readers |= {f"aggmatch.data.{name}" for name in ("folder", "own_images", "decode", "pixels", "archive", "summary")}
    assert "aggmatch.data.registry" in imported
    assert not imported & (readers | {"PIL", "sklearn", "scipy", "rich"})
