"""One image file as pixels: what is decoded, how, and what is refused."""

import hashlib
import os
import struct
import threading
import tracemalloc
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aggmatch.data.own import decode as module
from aggmatch.data.own.decode import Budget, decode, open_regular, printable, read_thumbnail, reason


def refused(file: Path) -> str:
    """Why a file cannot be decoded."""
    with pytest.raises(Exception) as error:
        decode(file, 8, 3)
    return reason(error.value)


def test_values_that_are_not_finite_do_not_darken_an_image(tmp_path):
    values = np.linspace(0, 1, 64, dtype=np.float32).reshape(8, 8)
    values[0, 0] = np.inf
    Image.fromarray(values).save(tmp_path / "inf.tif")
    assert decode(tmp_path / "inf.tif", 8, 1).float().mean() > 100
    Image.fromarray(np.full((8, 8), np.nan, dtype=np.float32)).save(tmp_path / "nan.tif")
    with pytest.raises(ValueError, match="no finite value"):
        decode(tmp_path / "nan.tif", 8, 1)


def test_an_image_is_cropped_to_its_centre_square(tmp_path):
    wide = np.zeros((10, 30, 3), dtype=np.uint8)
    wide[:, 10:20] = 255
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert torch.equal(decode(tmp_path / "wide.png", 10, 3), torch.full((3, 10, 10), 255, dtype=torch.uint8))


def test_an_image_is_rotated_as_its_exif_data_says(tmp_path):
    image = Image.fromarray(np.repeat(np.array([[255, 0]], dtype=np.uint8).repeat(8, 1), 16, 0))  # bright on the left
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    image.save(tmp_path / "turned.png", exif=exif)
    pixels = decode(tmp_path / "turned.png", 16, 1)
    assert pixels[0, :6].float().mean() > 250, "bright on top"
    assert pixels[0, -6:].float().mean() < 5


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_image_mode_becomes_grey_or_colour_bytes(tmp_path, mode, channels):
    image = Image.new("L", (9, 9), 200).convert(mode)
    file = tmp_path / ("image.tif" if mode == "CMYK" else "image.png")
    image.save(file)
    pixels = decode(file, 8, channels)
    assert (pixels.shape, pixels.dtype) == ((channels, 8, 8), torch.uint8)
    assert abs(pixels.float().mean().item() - (255 if mode == "1" else 200)) < 60


def test_transparent_pixels_become_white(tmp_path):
    Image.new("RGBA", (9, 9), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert (decode(tmp_path / "clear.png", 8, 3) == 255).all()


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.float32])
def test_images_of_more_than_8_bits_are_scaled_by_their_range(tmp_path, dtype):
    Image.fromarray(np.linspace(0, 1000, 64).reshape(8, 8).astype(dtype)).save(tmp_path / "deep.tif")
    pixels = decode(tmp_path / "deep.tif", 8, 1)
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)


# Unchanged --------------------------------------------------------------------------------------------------------

NOISE = (np.arange(40 * 30 * 4, dtype=np.uint32) * 2654435761 >> 24).astype(np.uint8).reshape(40, 30, 4)


@pytest.mark.parametrize(
    ("mode", "grey", "color"),
    [
        ("L", "dfa356ca9d24c496", "d32b0f7b66491054"),
        ("RGB", "dfa356ca9d24c496", "ea0245b5c504049c"),
        ("RGBA", "48224658a8f34d43", "b4fcfb1e5cb7d37c"),
        ("P", "0a773ea937807fec", "59de6e8b1c69fdb9"),
        ("I;16", "93da77f7afecd80c", "0816ee471e126419"),
    ],
)
def test_pixels_stay_the_same_so_that_old_runs_resume(tmp_path, mode, grey, color):
    deep = Image.fromarray(NOISE[..., 0].astype(np.uint16) * 200)
    (deep if mode == "I;16" else Image.fromarray(NOISE).convert(mode)).save(tmp_path / "x.png")
    for channels, digest in ((1, grey), (3, color)):
        pixels = decode(tmp_path / "x.png", 16, channels).contiguous().numpy().tobytes()
        assert hashlib.sha256(pixels).hexdigest()[:16] == digest


def test_a_deep_image_is_scaled_alike_in_strips_and_at_once(tmp_path, monkeypatch):
    Image.fromarray(NOISE[..., 0].astype(np.uint16) * 200).save(tmp_path / "deep.png")
    whole = decode(tmp_path / "deep.png", 30, 1)
    monkeypatch.setattr(module, "STRIP", 70)
    assert torch.equal(decode(tmp_path / "deep.png", 30, 1), whole)


# Refused ----------------------------------------------------------------------------------------------------------


def large_png(width: int, height: int, bits: int) -> bytes:
    """A small file that claims to be a large grey image."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10_000)))


def test_a_fifo_is_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "x.jpg")
    assert refused(tmp_path / "x.jpg") == "not a regular file"
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(Path("/dev/zero"))


def test_a_file_above_a_gibibyte_is_refused(tmp_path):
    with (tmp_path / "x.jpg").open("wb") as file:
        file.truncate(2**30 + 1)
    assert refused(tmp_path / "x.jpg") == "larger than 1 GiB"


@pytest.mark.parametrize(
    "content",
    [
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(touched) (w) file\n",
        b"DDS \x7c\0\0\0" + bytes(120),
        b"BLP2" + bytes(200),
        b"\0\0\0\x1cftypavif\0\0\0\0avifmif1miaf" + bytes(200),
        b"\x00\x00\x00\x0cjP  \r\n\x87\n" + bytes(50),
        b"not an image",
        b"",
    ],
    ids=["PostScript", "DDS", "BLP", "AVIF", "JPEG 2000", "text", "empty"],
)
def test_other_formats_are_refused_whatever_the_file_is_called(tmp_path, content, monkeypatch):
    def never(*_args, **_options):
        raise AssertionError("a program is started")

    monkeypatch.setattr("subprocess.check_call", never)
    (tmp_path / "x.jpg").write_bytes(content)
    assert refused(tmp_path / "x.jpg") == "not a JPEG, PNG, WEBP, TIFF, BMP, GIF or PPM image"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP", "PPM"])
def test_damaged_images_are_decoded_or_refused_with_a_reason(tmp_path, kind):
    random = np.random.default_rng(0)
    image = Image.fromarray(random.integers(0, 256, (20, 20, 3), dtype=np.uint8))
    whole = BytesIO()
    image.save(whole, kind)
    for _ in range(60):
        data = bytearray(whole.getvalue()[: random.integers(1, whole.tell() + 1)])
        for position in random.integers(0, len(data), 3):
            data[position] = random.integers(256)
        (tmp_path / "x.png").write_bytes(data)
        problem = ""
        try:
            shape = decode(tmp_path / "x.png", 8, 3).shape
        except Exception as error:
            shape, problem = None, reason(error)
        assert shape == (3, 8, 8) or problem


@pytest.mark.filterwarnings("ignore")  # as `decode_all` does
def test_an_image_of_too_many_pixels_is_refused_before_it_takes_memory(tmp_path):
    (tmp_path / "deep.png").write_bytes(large_png(13_000, 13_000, 16))
    tracemalloc.start()
    assert refused(tmp_path / "deep.png") == "169,000,000 pixels, more than 100,000,000"
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20e6
    (tmp_path / "vast.png").write_bytes(large_png(20_000, 10_000, 1))
    assert refused(tmp_path / "vast.png") == "more than 178,956,970 pixels"


def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(tmp_path, monkeypatch):
    Image.new("RGB", (800, 640), (10, 200, 30)).save(tmp_path / "large.jpg")
    monkeypatch.setattr(module, "MOST_PIXELS", 100 * 80)
    assert decode(tmp_path / "large.jpg", 32, 3).float().mean((1, 2)).tolist() == pytest.approx([10, 200, 30], abs=3)
    assert read_thumbnail(tmp_path / "large.jpg", 80).size == (80, 64)
    Image.new("RGB", (800, 640)).save(tmp_path / "large.png")
    assert refused(tmp_path / "large.png") == "512,000 pixels, more than 8,000"


def test_threads_wait_until_pixels_are_free():
    budget, order = Budget(10), list[str]()

    def work() -> None:
        with budget.taking(99):
            order.append("second")

    with budget.taking(4):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"], "more than all pixels wait for all"
    assert budget.free == 10


# Thumbnails and names ---------------------------------------------------------------------------------------------


def test_a_thumbnail_shows_the_whole_photo_upright_and_small(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (400, 200), (0, 0, 200)).save(tmp_path / "turned.jpg", exif=exif)
    thumbnail = read_thumbnail(tmp_path / "turned.jpg")
    assert (thumbnail.mode, thumbnail.size) == ("RGB", (48, 96))
    Image.new("RGBA", (10, 10), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    assert read_thumbnail(tmp_path / "clear.png").getpixel((5, 5)) == (255, 255, 255)
    assert read_thumbnail(tmp_path / "clear.png").size == (10, 10), "never enlarged"
    Image.fromarray(np.arange(0, 64000, 1000, dtype=np.uint16).reshape(8, 8)).save(tmp_path / "deep.png")
    assert read_thumbnail(tmp_path / "deep.png").getpixel((7, 7)) == (255, 255, 255)


def test_a_thumbnail_of_a_bad_file_is_an_error_that_names_it(tmp_path):
    (tmp_path / "bad\x1b[31m.jpg").write_text("no image")
    with pytest.raises(OSError, match=r"Cannot read .*bad�\[31m\.jpg: not a JPEG, .* or PPM image\."):
        read_thumbnail(tmp_path / "bad\x1b[31m.jpg")


def test_printable_texts_have_neither_control_characters_nor_other_bytes():
    assert printable("rosé 🌹/1.jpg") == "rosé 🌹/1.jpg"
    assert printable(Path(os.fsdecode(b"caf\xe9\n"))) == "caf��"
