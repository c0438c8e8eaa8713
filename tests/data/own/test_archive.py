"""Data sets in one file: what is unpacked and where, which arrays are read, and what is refused."""

import io
import os
import stat
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from aggmatch.data.own import archive as module
from aggmatch.data.own.archive import read_arrays, unpack
from aggmatch.errors import AggMatchError


def packed(path: Path, members: dict[str, bytes], **options) -> Path:
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def unpacked(path: Path, cache: Path) -> list[str]:
    """Names of the unpacked files."""
    folder = unpack(path, str(cache))
    return sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())


def test_images_and_tables_are_unpacked_into_the_cache_and_nothing_else(tmp_path):
    names = [
        "a/1.JPG",
        "a/2.png",
        "labels.csv",
        "data.npz",
        "run.sh",
        "a/.hidden.png",
        "__MACOSX/a/1.JPG",
        ".git/x.png",
    ]
    path = packed(tmp_path / "photos.zip", dict.fromkeys(names, b"x"))
    assert unpacked(path, tmp_path / "cache") == ["a/1.JPG", "a/2.png", "data.npz", "labels.csv"]
    assert unpack(path, str(tmp_path / "cache")).is_relative_to(tmp_path / "cache/archives")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "photos.zip"]


def test_paths_of_windows_become_folders(tmp_path):
    assert unpacked(packed(tmp_path / "x.zip", {"a\\1.jpg": b"x", "b\\2.jpg": b"y"}), tmp_path) == [
        "a/1.jpg",
        "b/2.jpg",
    ]


def test_an_archive_is_unpacked_once_and_again_if_it_changes(tmp_path, monkeypatch):
    path = packed(tmp_path / "x.zip", {"a.jpg": b"one", "b.jpg": b"two"})
    first = unpack(path, str(tmp_path))
    copy = path.rename(tmp_path / "copy.zip")
    with monkeypatch.context() as patch:
        patch.setattr(module, "unpack_members", None)
        assert unpack(copy, str(tmp_path)) == first, "the content counts, not the name"
    second = unpack(packed(path, {"a.jpg": b"one", "b.jpg": b"TWO"}), str(tmp_path))
    assert (first / "b.jpg").read_bytes() == b"two"
    assert (second / "b.jpg").read_bytes() == b"TWO"


def test_a_damaged_unpacked_folder_is_unpacked_again(tmp_path):
    path = packed(tmp_path / "x.zip", {"a.jpg": b"one", "b.jpg": b"two"})
    folder = unpack(path, str(tmp_path))
    (folder / "a.jpg").unlink()
    assert (unpack(path, str(tmp_path)) / "a.jpg").read_bytes() == b"one"
    (folder / "b.jpg").write_bytes(b"")
    assert (unpack(path, str(tmp_path)) / "b.jpg").read_bytes() == b"two"
    assert [entry.name for entry in (tmp_path / "archives").iterdir()] == [folder.name], "and leaves no other folder"


def test_the_oldest_unpacked_archives_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "UNPACKED", 2500)
    folders = []
    for k in range(3):
        path = packed(tmp_path / f"{k}.zip", {"a.jpg": bytes([k]) * 1000, "b.jpg": b""})
        folders.append(unpack(path, str(tmp_path)))
        os.utime(folders[-1], (1000 + k, 1000 + k))
    assert [folder.exists() for folder in folders] == [False, True, True]


@pytest.mark.parametrize("name", ["../evil.jpg", "/tmp/evil.jpg", "a/../../evil.jpg", "..\\evil.jpg"])
def test_a_path_that_leads_outside_is_refused(tmp_path, name):
    (tmp_path / "in").mkdir()
    path = packed(tmp_path / "in/x.zip", {name: b"x"})
    with pytest.raises(AggMatchError, match=r"x\.zip holds '.*evil\.jpg', which leads outside"):
        unpack(path, str(tmp_path / "in/cache"))
    assert not list(tmp_path.rglob("evil.jpg"))


def test_links_are_left_out(tmp_path):
    link = zipfile.ZipInfo("link.jpg")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.writestr("a.jpg", b"x")
    assert unpacked(tmp_path / "x.zip", tmp_path) == ["a.jpg"]


def test_an_archive_that_is_too_large_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    bomb = packed(tmp_path / "bomb.zip", {"a.jpg": bytes(10**6)}, compression=zipfile.ZIP_DEFLATED)
    monkeypatch.setattr(module, "UNPACKED", 10**6 - 1)
    with pytest.raises(AggMatchError, match=r"bomb\.zip would unpack to 0 GiB, more than"):
        unpack(bomb, str(tmp_path / "cache"))
    monkeypatch.setattr(module, "MEMBERS", 1)
    with pytest.raises(AggMatchError, match=r"holds 2 files, more than 1"):
        unpack(packed(tmp_path / "many.zip", {"a.jpg": b"", "b.jpg": b""}), str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_a_member_that_is_longer_than_it_says_is_cut(tmp_path):
    packed(tmp_path / "x.zip", {"a.jpg": bytes(5000)}, compression=zipfile.ZIP_DEFLATED)
    data = (tmp_path / "x.zip").read_bytes()
    (tmp_path / "x.zip").write_bytes(data.replace((5000).to_bytes(4, "little"), (10).to_bytes(4, "little")))
    with pytest.raises(AggMatchError, match=r"x\.zip is corrupt"):
        unpack(tmp_path / "x.zip", str(tmp_path / "cache"))
    assert not list((tmp_path / "cache").rglob("*.jpg"))


def test_encrypted_and_damaged_archives_are_errors_that_name_them(tmp_path):
    path = packed(tmp_path / "x.zip", {"a.jpg": b"abc" * 100})
    whole = path.read_bytes()
    encrypted = bytearray(whole)
    encrypted[whole.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(encrypted)
    with pytest.raises(AggMatchError, match=r"x\.zip is encrypted"):
        unpack(path, str(tmp_path))
    random = np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        for position in random.integers(0, len(whole), 4):
            damaged[position] = random.integers(256)
        path.write_bytes(damaged)
        problem = ""
        try:
            unpack(path, str(tmp_path))
        except AggMatchError as error:
            problem = str(error)
        assert not problem or str(path) in problem


def test_a_disk_without_space_is_an_error_that_says_what_to_do(tmp_path, monkeypatch):
    path = packed(tmp_path / "x.zip", {"a.jpg": b"x" * 100})
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
        with pytest.raises(AggMatchError, match=r"Cannot unpack .*x\.zip into .*GB are free.*runtime\.cache_dir"):
            unpack(path, str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(AggMatchError, match=r"Cannot unpack .*: Not a directory"):
        unpack(path, str(tmp_path / "file"))


# Arrays -----------------------------------------------------------------------------------------------------------


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((6, 8, 8, 3), (6, 3, 8, 8)),
        ((6, 3, 8, 8), (6, 3, 8, 8)),
        ((6, 8, 8), (6, 1, 8, 8)),
        ((6, 8, 8, 1), (6, 1, 8, 8)),
        ((6, 1, 8, 8), (6, 1, 8, 8)),
        ((6, 20, 30, 3), (6, 3, 8, 8)),
        ((6, 5, 5), (6, 1, 8, 8)),
    ],
)
def test_images_of_every_usual_shape_are_read(tmp_path, shape, expected):
    np.savez(tmp_path / "x.npz", images=pixels(*shape), labels=np.array([0, 1, 0, 1, -1, -1]))
    arrays = read_arrays(tmp_path / "x.npz", 8)
    assert tuple(arrays.train.pixels.shape) == expected
    assert arrays.train.labels.tolist() == [0, 1, 0, 1, -1, -1]
    assert arrays.test is None


def test_images_of_the_right_size_are_not_changed(tmp_path):
    images = pixels(4, 8, 8, 3)
    np.savez_compressed(tmp_path / "x.npz", images=images, labels=np.array([0, 1, 0, 1]))
    assert np.array_equal(read_arrays(tmp_path / "x.npz", 8).train.pixels.numpy(), images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [
        (np.array([10, 2, -1], dtype=np.int8), ("2", "10"), [1, 0, -1]),
        (np.array([7, 0, 7], dtype=np.uint16), ("0", "7"), [1, 0, 1]),
        (np.array([[1], [0], [-1]]), ("0", "1"), [1, 0, -1]),
        (np.array(["hat", "", "dress"]), ("dress", "hat"), [1, -1, 0]),
    ],
)
def test_labels_are_numbers_or_texts(tmp_path, labels, classes, numbers):
    np.savez(tmp_path / "x.npz", images=pixels(3, 8, 8), labels=labels)
    arrays = read_arrays(tmp_path / "x.npz", 8)
    assert (arrays.classes, arrays.train.labels.tolist()) == (classes, numbers)


def test_test_arrays_are_the_test_images(tmp_path):
    train = {"images": pixels(3, 8, 8), "labels": np.array(["a", "b", ""])}
    train |= {"test_images": pixels(2, 9, 9), "test_labels": np.array(["b", "a"])}
    np.savez(tmp_path / "x.npz", **train)  # type: ignore[arg-type]
    arrays = read_arrays(tmp_path / "x.npz", 8)
    assert arrays.test is not None
    assert (tuple(arrays.test.pixels.shape), arrays.test.labels.tolist()) == ((2, 1, 8, 8), [1, 0])


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": pixels(3, 8, 8)}, "must hold the arrays images and labels, but has no images: it holds x"),
        ({"images": pixels(3, 8, 8)}, "has no labels"),
        ({"images": pixels(3, 8, 8) / 255}, r"images in .* must be uint8 .* got float64 of shape \(3, 1, 8, 8\)"),
        ({"images": pixels(3, 8, 8, 4)}, r"got uint8 of shape \(3, 8, 8, 4\)"),
        ({"images": pixels(3, 8)}, "got uint8"),
        ({"images": pixels(4, 8, 8)}, "holds 4 images, but 3 labels"),
        ({"labels": np.array([0.5, 1, 1])}, "whole numbers or texts, got float64"),
        ({"labels": np.array([0, 1, -2])}, "must be at least 0, or -1 for no label, got -2"),
        ({"labels": np.array(["a", "b\x07", ""])}, "holds b�, which has control characters"),
        ({"labels": np.array(["a", "b", None], dtype=object)}, "labels in .* holds Python objects"),
        (
            {"test_images": pixels(1, 8, 8), "test_labels": np.array([5])},
            "test_labels in .* holds 5, which no",
        ),
        ({"test_images": pixels(1, 8, 8), "test_labels": np.array([-1])}, "holds an empty label"),
    ],
)
def test_the_error_names_the_array(tmp_path, arrays, problem):
    usual = {"images": pixels(3, 8, 8), "labels": np.array([0, 1, 1])}
    whole = arrays if "must hold" in problem or "has no" in problem else usual | arrays
    np.savez(tmp_path / "x.npz", **whole)
    with pytest.raises(AggMatchError, match=problem) as error:
        read_arrays(tmp_path / "x.npz", 8)
    assert str(tmp_path / "x.npz") in str(error.value)


def test_a_header_cannot_ask_for_more_memory_than_the_file_holds(tmp_path):
    header = io.BytesIO()
    shape = {"descr": "|u1", "fortran_order": False, "shape": (10**6, 1000, 1000)}
    np.lib.format.write_array_header_1_0(header, shape)
    packed(tmp_path / "x.npz", {"images.npy": header.getvalue() + bytes(100), "labels.npy": b""})
    with pytest.raises(AggMatchError, match=r"x\.npz is corrupt \(images is shorter than its shape \(1000000, 1000"):
        read_arrays(tmp_path / "x.npz", 8)


def test_a_large_array_is_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "x.npz", images=pixels(3, 8, 8), labels=np.array([0, 1, 1]))
    monkeypatch.setattr(module, "IN_MEMORY", 300)
    with pytest.raises(AggMatchError, match=r"images in .*x\.npz has 0 GiB, more than 0"):
        read_arrays(tmp_path / "x.npz", 8)


def test_damaged_arrays_are_read_or_an_error_that_names_the_file(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, images=pixels(3, 8, 8), labels=np.array([0, 1, 1]))
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole[: random.integers(1, len(whole) + 1)])
        for position in random.integers(0, len(damaged), 3):
            damaged[position] = random.integers(256)
        path.write_bytes(damaged)
        problem = ""
        try:
            read_arrays(path, 8)
        except AggMatchError as error:
            problem = str(error)
        assert not problem or str(path) in problem
