"""A page of images to look through."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True)
class Picture:
    """One image of a contact sheet."""

    name: str
    """Its file, or its number."""
    thumbnail: str
    """A data URI; see `aggmatch.report.test_results.thumbnail`."""
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
