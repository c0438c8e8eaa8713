import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggmatch.data import Images, load
from aggmatch.data.builtin.cifar import CIFAR10, CIFAR10_ARCHIVE, CIFAR100, CIFAR100_ARCHIVE
from aggmatch.errors import AggMatchError

FIRST = CIFAR10_ARCHIVE.members[0]


def expected(*batches, key="labels"):
    """(pixels, labels) of batches computed slowly, row by row."""
    pixels = np.concatenate([batch["data"] for batch in batches])
    images = np.zeros((len(pixels), 3, 32, 32), np.uint8)
    for channel in range(3):
        for row in range(32):
            images[:, channel, row] = pixels[:, channel * 1024 + row * 32 :][:, :32]
    return images, [label for batch in batches for label in batch[key]]


def assert_same(images: Images, wanted) -> None:
    np.testing.assert_array_equal(images.pixels.numpy(), wanted[0])
    assert images.labels.tolist() == wanted[1]


def test_cifar10_is_read_from_the_folder_and_from_the_archive(put_cifar10, cifar10_batches):
    data = load("cifar10", put_cifar10(cifar10_batches))
    *train, test = cifar10_batches.values()
    assert_same(data.train, expected(*train))
    assert_same(data.test, expected(test))
    assert data.mirror
    assert data.classes[3] == "cat"


def test_cifar100_gives_the_fine_labels(tmp_path, unpack, cifar100_batches, python2_pickle):
    unpack(tmp_path, {name: python2_pickle(batch) for name, batch in cifar100_batches.items()})
    data = load("cifar100", tmp_path)
    train, test = cifar100_batches.values()
    assert_same(data.train, expected(train, key="fine_labels"))
    assert_same(data.test, expected(test, key="fine_labels"))


def test_cifar100_is_read_from_its_archive(tmp_path, pack, cifar100_batches, python2_pickle):
    pack(tmp_path / CIFAR100_ARCHIVE.file, {name: python2_pickle(batch) for name, batch in cifar100_batches.items()})
    assert_same(load("cifar100", tmp_path).test, expected(cifar100_batches["cifar-100-python/test"], key="fine_labels"))


def test_the_order_of_an_array_in_memory_does_not_matter(put_cifar10, cifar10_batches):
    *_, last = cifar10_batches.values()
    last["data"] = np.asfortranarray(last["data"])
    images = load("cifar10", put_cifar10(cifar10_batches)).test
    assert_same(images, expected(last))
    assert images.pixels.is_contiguous()


def test_the_pixels_can_be_written_to(put_cifar10, cifar10_batches):
    pixels = load("cifar10", put_cifar10(cifar10_batches)).test.pixels
    assert torch.equal(pixels.fill_(7), torch.full_like(pixels, 7))


def test_the_archive_is_read_if_the_folder_is_incomplete(tmp_path, pack, unpack, cifar10_batches, python2_pickle):
    members = {name: python2_pickle(batch) for name, batch in cifar10_batches.items()}
    pack(tmp_path / CIFAR10_ARCHIVE.file, members)
    unpack(tmp_path, {FIRST: members[FIRST]})
    assert len(load("cifar10", tmp_path).train) == 20


def test_class_names_are_complete():
    assert len(CIFAR10.classes) == 10
    assert len(set(CIFAR100.classes)) == 100
    assert list(CIFAR100.classes) == sorted(CIFAR100.classes)


def error_of(folder: Path) -> str:
    with pytest.raises(AggMatchError) as error:
        load("cifar10", folder)
    return str(error.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"data": np.zeros((4, 3071), np.uint8)},
            "uint8 of shape (4, 3071) instead of uint8 pixels of shape (N, 3072)",
        ),
        ({"data": np.zeros((4, 3072), np.float32)}, "float32 of shape (4, 3072)"),
        ({"data": np.zeros(3072, np.uint8)}, "uint8 of shape (3072,)"),
        ({"data": [1, 2]}, "holds list instead of"),
        ({"labels": [1, 2, 3]}, "a batch of 4 images does not hold 4 labels"),
        ({"labels": "1234"}, "does not hold 4 labels"),
        ({"labels": [0, 1, 2, 10]}, "label 10 is not a whole number in [0, 9]"),
        ({"labels": [0, 1, 2, -1]}, "label -1 is not"),
        ({"labels": [0, 1, 2, 1.5]}, "label 1.5 is not"),
    ],
)
def test_an_error_names_the_file_with_wrong_content_and_the_next_step(put_cifar10, cifar10_batches, change, problem):
    cifar10_batches[FIRST] |= change
    message = error_of(put_cifar10(cifar10_batches))
    assert problem in message
    assert FIRST in message or CIFAR10_ARCHIVE.file in message
    assert message.endswith("Delete it and download it again.")


@pytest.mark.parametrize("content", [[], {}, {"data": np.zeros((4, 3072), np.uint8)}, {"labels": [0] * 4}])
def test_a_batch_without_pixels_or_labels_is_corrupt(put_cifar10, cifar10_batches, content):
    assert "lacks 'data' or 'labels'" in error_of(put_cifar10(cifar10_batches | {FIRST: content}))


@pytest.mark.parametrize("share", [0, 0.01, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("packed", [True, False])
def test_a_truncated_file_is_corrupt(tmp_path, pack, unpack, cifar10_batches, python2_pickle, share, packed):
    members = {name: python2_pickle(batch) for name, batch in cifar10_batches.items()}
    if packed:
        path = tmp_path / CIFAR10_ARCHIVE.file
        pack(path, members)
    else:
        path = tmp_path / FIRST
        unpack(tmp_path, members)
    os.truncate(path, int(share * path.stat().st_size))
    assert error_of(tmp_path).startswith(f"{path} is corrupt (")


def test_a_flipped_bit_in_the_archive_is_found(tmp_path, pack, cifar10_batches, python2_pickle):
    path = tmp_path / CIFAR10_ARCHIVE.file
    pack(path, {name: python2_pickle(batch) for name, batch in cifar10_batches.items()})
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1  # among random pixels, which deflate cannot compress
    path.write_bytes(raw)
    assert error_of(tmp_path).startswith(f"{path} is corrupt (")


def test_an_archive_without_a_batch_is_corrupt(tmp_path, pack, cifar10_batches, python2_pickle):
    del cifar10_batches[FIRST]
    path = tmp_path / CIFAR10_ARCHIVE.file
    pack(path, {name: python2_pickle(batch) for name, batch in cifar10_batches.items()})
    assert f"{path} is corrupt (it lacks {FIRST})" in error_of(tmp_path)


def test_a_web_page_saved_as_the_archive_is_corrupt(tmp_path):
    (tmp_path / CIFAR10_ARCHIVE.file).write_text("<html>Please log in to the network</html>")
    assert "is corrupt (Not a gzipped file" in error_of(tmp_path)


class Witness:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_malicious_batch_fails_and_runs_nothing(tmp_path, pack, cifar10_batches, python2_pickle):
    witness = tmp_path / "ran"
    members = {name: python2_pickle(batch) for name, batch in cifar10_batches.items()}
    pack(tmp_path / CIFAR10_ARCHIVE.file, members | {FIRST: pickle.dumps(Witness(witness))})
    message = error_of(tmp_path)
    assert f"{CIFAR10_ARCHIVE.file} ({FIRST}): it asks to run " in message
    assert not witness.exists()


def test_an_index_that_would_fill_the_memory_fails_first(tmp_path, unpack, cifar10_batches, python2_pickle):
    members = {name: python2_pickle(batch) for name, batch in cifar10_batches.items()}
    unpack(tmp_path, members | {FIRST: b"\x80\x02}r" + (2**31).to_bytes(4, "little") + b"."})
    assert "at index 2147483648" in error_of(tmp_path)


@given(cut=st.integers(1, 6000), garbage=st.binary(max_size=8))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_invalid_bytes_in_a_batch_always_give_one_clear_error(
    tmp_path, unpack, cifar10_batches, python2_pickle, cut, garbage
):
    members = {name: python2_pickle(batch) for name, batch in cifar10_batches.items()}
    unpack(tmp_path, members | {FIRST: members[FIRST][:cut] + garbage})
    corrupt, foreign = f"{tmp_path / FIRST} is corrupt (", f"Cannot read {tmp_path / FIRST}: it asks to run "
    assert error_of(tmp_path).startswith((corrupt, foreign))  # a truncated name may name another object
