import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from aggmatch.data import SOURCES, is_folder, load, sources
from aggmatch.data.cifar import CIFAR10, CIFAR10_ARCHIVE, read_cifar
from aggmatch.errors import AggMatchError
from aggmatch.settings import resolve


def refusal(name: str, folder: Path, **options) -> str:
    with pytest.raises(AggMatchError) as error:
        load(name, folder, **options)
    return str(error.value)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_every_source_describes_itself_in_one_sentence(source):
    assert source.description.endswith(".")
    assert "\n" not in source.description
    assert source.train_size > source.test_size > 0
    assert set(source.noise_map) | set(source.noise_map.values()) <= set(source.classes)
    for archive in source.archives:
        assert archive.url.endswith(archive.file)
        assert len(bytes.fromhex(archive.md5)) == 16


def test_the_noise_maps_are_the_papers():
    assert SOURCES["cifar10"].noise_map == {
        "truck": "automobile",
        "bird": "airplane",
        "deer": "horse",
        "cat": "dog",
        "dog": "cat",
    }
    assert SOURCES["svhn"].noise_map == {"2": "7", "3": "8", "5": "6", "6": "5", "7": "1"}
    assert SOURCES["digits"].noise_map == SOURCES["svhn"].noise_map
    assert not SOURCES["cifar100"].noise_map


def test_only_the_photographs_may_be_flipped():
    assert [name for name, source in SOURCES.items() if source.mirror] == ["cifar10", "cifar100"]


def test_a_source_is_present_once_its_files_are(tmp_path):
    svhn = SOURCES["svhn"]
    assert SOURCES["digits"].present(tmp_path)
    assert not svhn.present(tmp_path)
    for archive in svhn.archives:
        (tmp_path / archive.file).touch()
    assert svhn.present(tmp_path)


def test_missing_files_say_which_where_from_and_how_to_get_them(tmp_path):
    assert refusal("cifar10", tmp_path) == (
        f"cifar10 is not in {tmp_path}: looked for cifar-10-python.tar.gz (or the folder cifar-10-batches-py). "
        "Add --download to fetch 170 MB from https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz, "
        "or name another folder with --data-dir."
    )


def test_only_the_files_that_are_missing_are_named(tmp_path):
    (tmp_path / "train_32x32.mat").touch()
    message = refusal("svhn", tmp_path)
    assert "looked for test_32x32.mat. Add --download to fetch 64 MB from http://ufldl.stanford.edu" in message
    assert "train_32x32" not in message


def test_an_incomplete_folder_says_what_it_lacks(tmp_path):
    (tmp_path / "cifar-100-python").mkdir()
    (tmp_path / "cifar-100-python/train").touch()
    assert "(the folder cifar-100-python is there but lacks test)" in refusal("cifar100", tmp_path)


def test_a_data_folder_that_is_a_file_or_is_not_there_counts_as_empty(tmp_path):
    (tmp_path / "file").touch()
    assert "cifar10 is not in" in refusal("cifar10", tmp_path / "file")
    assert "cifar10 is not in" in refusal("cifar10", tmp_path / "nowhere")


def test_an_unknown_name_gets_the_closest_one(tmp_path):
    assert refusal("cifar11", tmp_path) == "Unknown data set 'cifar11'. Did you mean 'cifar10'? See: aggmatch list data"
    assert "Known: cifar10, cifar100, digits, svhn." in refusal("", tmp_path)


@pytest.mark.parametrize("name", [".", "some/where"])
def test_a_path_is_told_from_a_misspelt_name(tmp_path, name):
    assert "no image to test with" in refusal(name, tmp_path) or "There is no folder" in refusal(name, tmp_path)


def test_download_fetches_what_is_missing_and_reads_it(
    tmp_path, monkeypatch, loopback, pack, cifar10_batches, python2_pickle
):
    packed = tmp_path / "packed"
    pack(packed, {name: python2_pickle(batch) for name, batch in cifar10_batches.items()})
    loopback.content = packed.read_bytes()
    digest = hashlib.md5(loopback.content).hexdigest()
    archive = replace(CIFAR10_ARCHIVE, url=loopback.url, md5=digest, size=len(loopback.content))
    read = partial(read_cifar, archive=archive, label_key=b"labels", classes=10)
    monkeypatch.setattr(sources, "SOURCES", {"cifar10": replace(CIFAR10, archives=(archive,), read=read)})

    folder = tmp_path / "new/data"
    told: list[tuple[int, int]] = []
    data = load("cifar10", folder, download=True, progress=lambda *step: told.append(step))
    assert len(data.train) == 20
    assert told[-1] == (archive.size, archive.size)
    assert [path.name for path in folder.iterdir()] == [archive.file]

    assert len(load("cifar10", folder, download=True).train) == 20
    assert len(loopback.requests) == 1

    (folder / archive.file).write_bytes(b"damaged")
    assert "is not the published file" in refusal("cifar10", folder, download=True)
    assert (folder / archive.file).read_bytes() == b"damaged"


def test_unpacked_files_are_not_downloaded_again(tmp_path, monkeypatch, unpack, cifar10_batches, python2_pickle):
    def fetch(*_arguments):
        pytest.fail("nothing is missing")

    monkeypatch.setattr(sources, "fetch", fetch)
    unpack(tmp_path, {name: python2_pickle(batch) for name, batch in cifar10_batches.items()})
    assert len(load("cifar10", tmp_path, download=True).train) == 20


def test_a_folder_is_told_from_a_name_and_known_names_win(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert is_folder("some/where")
    assert not is_folder("flowers")
    for name in ("flowers", "digits"):
        (tmp_path / name).mkdir()
    assert is_folder("flowers")
    assert not is_folder("digits")
    assert not is_folder("")
    assert resolve({"data.name": "digits"}).model.name == "small-16", "the recipe of the data set, not of a folder"
