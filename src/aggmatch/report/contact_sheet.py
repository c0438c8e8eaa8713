"""Small pictures of images, and a page of them to look through."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from aggmatch.data import Images, is_own_images


@dataclass(frozen=True)
class Picture:
    """One image of a contact sheet."""

    name: str
    """Its file, or its number."""
    thumbnail: str
    """A data URI; see `thumbnail`."""
    lines: Sequence[str] = ()
    """What stands below it; the first line is bold."""


def contact_sheet(title: str, lead: str, pictures: Sequence[Picture]) -> str:
    """Return a page of images as HTML that loads nothing.

    title: what the images are. lead: what to do with them. pictures: in the order in which they are shown.

    Example: `contact_sheet("To label", "Fill in labels.csv.", [Picture("1.jpg", thumbnail("photos", images, 0))])`.
    """
    environment = Environment(loader=PackageLoader("aggmatch.report"), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    assert environment.loader
    style = environment.loader.get_source(environment, "report.css")[0]
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return environment.get_template("contact_sheet.html").render(
        title=title, lead=lead, pictures=pictures, made=made, style=Markup(style)
    )


def thumbnail(data: str, images: Images, position: int, cache_dir: str | None = None) -> str:
    """Return an image as a data URI: from the original photo if it can be read, else the pixels that a model sees.

    data: the setting `data.name`. images: of this data set. position: of the image among them.
    """
    photo, buffer = original(data, images, position, cache_dir), io.BytesIO()
    if photo is None:
        pixels = images.pixels[position].permute(1, 2, 0).numpy()
        photo = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
        kind, options = "png", {}
    else:
        kind, options = "jpeg", {"quality": 80}
    photo.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def original(data: str, images: Images, position: int, cache_dir: str | None = None) -> Image.Image | None:
    """Return the photo of an image of your own, small; None if there is none or it cannot be read."""
    if not is_own_images(data):
        return None
    from aggmatch.data.own.decode import read_thumbnail
    from aggmatch.data.own.images import original_file

    file = original_file(data, images.names[position] if images.names else "", cache_dir)
    try:
        return read_thumbnail(file) if file else None
    except OSError:
        return None
