"""The page of small pictures, and how each of them is made."""

import base64
import io
import re
from pathlib import Path

import torch
from PIL import Image
from tests.data.photos import paint

from aggmatch.data import Images
from aggmatch.report.contact_sheet import Picture, contact_sheet
from aggmatch.report.test_results import thumbnail


def opened(uri: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))


def test_pictures_are_numbered_in_order_with_their_lines():
    page = contact_sheet(
        "Two images", "Look.", [Picture("a.png", "data:,1", ("cat → dog?", "a")), Picture("b", "data:,2")]
    )
    assert "<h1>Two images</h1>" in page
    assert re.findall(r'<span class="small">(\d)</span><img src="(data:,\d)"', page) == [
        ("1", "data:,1"),
        ("2", "data:,2"),
    ]
    assert "<b>cat → dog?</b>" in page


def test_names_of_files_and_classes_are_text():
    evil = '"><script>alert(1)</script>'
    page = contact_sheet(evil, evil, [Picture(evil, "data:,", (evil, evil))])
    assert "<script" not in page
    assert "default-src 'none'" in page


def test_a_thumbnail_shows_the_whole_photo_and_not_the_square_that_the_model_sees(tmp_path: Path):
    paint(tmp_path / "photos/1.png", size=(400, 100))
    images = Images(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.tensor([-1]), ("1.png",))
    assert opened(thumbnail(str(tmp_path / "photos"), images, 0)).size == (96, 24)


def test_without_a_file_a_thumbnail_has_the_pixels_themselves():
    images = Images(torch.full((1, 1, 8, 8), 7, dtype=torch.uint8), torch.tensor([0]))
    picture = opened(thumbnail("digits", images, 0))
    assert (picture.mode, picture.size, picture.getpixel((3, 3))) == ("L", (8, 8), 7)


def test_a_photo_that_cannot_be_read_falls_back_to_the_pixels(tmp_path: Path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.png").write_bytes(b"no image")
    images = Images(torch.zeros(1, 3, 8, 8, dtype=torch.uint8), torch.tensor([0]), ("1.png",))
    assert opened(thumbnail(str(tmp_path / "photos"), images, 0)).size == (8, 8)
