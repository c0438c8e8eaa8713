"""Many image files as pixels: in parallel, with progress, and found again in the cache."""

import os
from pathlib import Path

import pytest
import torch
from tests.data.photos import LONG_AGO, paint

from aggmatch.data.own import pixels as module
from aggmatch.data.own.decode import decode_stream
from aggmatch.data.own.pixels import decode_all, decode_in_turn
from aggmatch.storage.cache import Cache


def test_a_warning_names_unreadable_files_which_are_left_out(tmp_path):
    files = [paint(tmp_path / "good.png"), tmp_path / "text.jpg", tmp_path / "empty.png", tmp_path / "gone.png"]
    files[1].write_text("not an image")
    files[2].touch()
    cut = paint(tmp_path / "cut.png", size=(300, 300))
    cut.write_bytes(cut.read_bytes()[:100])
    with pytest.warns(
        UserWarning, match=r"4 of 6 files cannot be read .*text\.jpg \(not a JPEG.*/cut\.png \([^)]*\)\.$"
    ):
        pixels, kept = decode_all([*files, cut, paint(tmp_path / "last.png")], 8, 3)
    assert kept == [0, 5]
    assert pixels.shape == (2, 3, 8, 8)
    with pytest.warns(UserWarning, match=r"25 of 25 files cannot be read .* and 5 more\."):
        decode_all(25 * [tmp_path / "gone.png"], 8, 3)


def test_files_read_in_turn_have_one_warning_in_the_end(tmp_path):
    files = [paint(tmp_path / f"{k}.png", (10 * k, 0, 0)) for k in range(7)]
    for bad in (0, 5):
        files[bad].write_text("not an image")
    with pytest.warns(UserWarning, match=r"2 of 7 files cannot be read .*0\.png .*5\.png") as caught:
        batches = list(decode_in_turn(files, 8, 3, 3))
    read = [pair for some, pixels in batches for pair in zip(some, pixels[:, 0, 0, 0].tolist(), strict=True)]
    assert read == [(files[k], 10 * k) for k in (1, 2, 3, 4, 6)]
    assert len(caught) == 1


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Reads the images of a folder; the list holds the files that were decoded, by the mean of their red values."""
    decoded: list[int] = []
    original = decode_stream

    def counted(*arguments):
        pixels = original(*arguments)
        decoded.append(round(pixels[0].float().mean().item()))
        return pixels

    monkeypatch.setattr(module, "decode_stream", counted)
    cache = Cache(tmp_path / "cache")

    def read(folder: Path, side: int = 8) -> tuple[list[int], list[int]]:
        """Red values of all images, and of those that were decoded."""
        decoded.clear()
        files = sorted(folder.rglob("*.png"))
        pixels, _ = decode_all(files, side, 3, root=folder, cache=cache)
        return pixels[:, 0].float().mean((1, 2)).round().int().tolist(), sorted(decoded)

    return read


@pytest.fixture
def reds(tmp_path) -> Path:
    for k in range(5):
        paint(tmp_path / f"reds/{k}.png", (10 * k, 0, 0))
    return tmp_path / "reds"


def test_images_are_decoded_once_for_each_size(reader, reds):
    assert reader(reds) == ([0, 10, 20, 30, 40], [0, 10, 20, 30, 40])
    assert reader(reds) == ([0, 10, 20, 30, 40], [])
    assert reader(reds, side=9) == ([0, 10, 20, 30, 40], [0, 10, 20, 30, 40])
    assert reader(reds) == ([0, 10, 20, 30, 40], []), "both sizes are kept"


def test_only_new_and_changed_files_are_decoded(reader, reds):
    reader(reds)
    paint(reds / "1.png", (99, 0, 0))
    os.utime(reds / "1.png", (LONG_AGO + 1, LONG_AGO + 1))
    paint(reds / "sub/new.png", (77, 0, 0))
    (reds / "3.png").unlink()
    assert reader(reds) == ([0, 99, 20, 40, 77], [77, 99])
    assert reader(reds) == ([0, 99, 20, 40, 77], [])


def test_images_that_were_moved_renamed_or_touched_are_not_decoded_again(reader, reds):
    reader(reds)
    (reds / "rose").mkdir()
    (reds / "4.png").rename(reds / "rose/a.png")
    os.utime(reds / "0.png")
    assert reader(reds) == ([0, 10, 20, 30, 40], [])


def test_two_images_that_swapped_their_names_are_not_mixed_up(reader, reds):
    reader(reds)
    (reds / "1.png").rename(reds / "x")
    (reds / "2.png").rename(reds / "1.png")
    (reds / "x").rename(reds / "2.png")
    for name, time in (("1.png", LONG_AGO + 5), ("2.png", LONG_AGO + 6)):
        os.utime(reds / name, (time, time))
    assert reader(reds) == ([0, 20, 10, 30, 40], [])


def test_a_file_that_changed_just_now_is_compared_by_its_content(reader, reds):
    os.utime(reds / "0.png")
    before = (reds / "0.png").stat()
    reader(reds)
    paint(reds / "0.png", (55, 0, 0))
    data = (reds / "0.png").read_bytes()
    (reds / "0.png").write_bytes(data + bytes(max(before.st_size - len(data), 0)))
    os.utime(reds / "0.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert reader(reds)[0][0] == 55, "although size and time are the same"


def test_unreadable_files_are_reported_each_time_and_the_others_are_cached(reader, reds):
    (reds / "5.png").write_text("not an image")
    for expected in ([0, 10, 20, 30, 40], []):
        with pytest.warns(UserWarning, match=r"1 of 6 files cannot be read .*5\.png"):
            assert reader(reds) == ([0, 10, 20, 30, 40], expected)


def test_an_entry_of_other_arrays_is_not_used(reader, reds, monkeypatch):
    found = {"pixels": torch.zeros(5, 3, 8, 8, dtype=torch.uint8).numpy()}
    monkeypatch.setattr(Cache, "lookup", lambda *_: found)
    assert reader(reds)[1] == [0, 10, 20, 30, 40]


def test_progress_counts_images_and_ends_with_all(reds):
    calls: list[tuple[int, int]] = []
    decode_all(sorted(reds.iterdir()), 8, 3, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(number, 5) for number in range(1, 6)]


def test_any_exception_of_a_decoder_costs_one_file_only(reds, monkeypatch):
    def broken(stream, *_arguments):
        if stream.name.endswith("2.png"):
            raise IndexError("inside of a plugin")
        return torch.zeros(3, 8, 8, dtype=torch.uint8)

    monkeypatch.setattr(module, "decode_stream", broken)
    monkeypatch.setattr(module, "open_regular", lambda file: file.open("rb"))
    with pytest.warns(UserWarning, match=r"1 of 5 files .*2\.png \(corrupt\)"):
        pixels, kept = decode_all(sorted(reds.iterdir()), 8, 3)
    assert (len(pixels), kept) == (4, [0, 1, 3, 4])


def test_no_files_are_no_images():
    pixels, kept = decode_all([], 8, 1)
    assert (pixels.shape, kept) == ((0, 1, 8, 8), [])
