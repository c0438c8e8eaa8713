"""What to label next, for the report on a run."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from aggmatch.errors import AggMatchError
from aggmatch.features.active import suggest
from aggmatch.inference.pool import Pool, pool_of_run
from aggmatch.report.contact_sheet import Picture
from aggmatch.report.test_results import thumbnail
from aggmatch.runs.stored import StoredRun

SHOWN = 12
"""Images of the list."""


@dataclass(frozen=True)
class ToLabel:
    """The unlabelled images that teach most, the best first."""

    pictures: list[Picture]
    command: str
    """The command that writes a table of them to fill in."""


def find_to_label(run: StoredRun) -> ToLabel | None:
    """Return what to label next after a run on images of your own; None without a model, or if all have a label.

    Example: `find_to_label(read_run(Path("runs/photos-all-aggmatch-fold0")))`.
    """
    if not run.has_model:
        return None
    here, allowed = {"runtime.device": run.settings.runtime.device}, run.settings.parts
    try:
        pool = pool_of_run(run.folder.path, here, allow=allowed)  # the run was read, so its code is allowed
    except AggMatchError:  # other parts of the page say what is wrong with the images
        return None
    assert pool.probs is not None, "a run has predictions"
    chosen = suggest(pool.features, pool.labeled.tolist(), SHOWN, probs_NY=pool.probs)
    pictures = [
        picture(pool, position, f"{pool.classes[int(probs.argmax())]}?", f"{float(probs.max()):.2f}")
        for position, probs in zip(chosen, pool.probs[chosen], strict=True)
    ]
    return ToLabel(pictures, shlex.join(["aggmatch", "suggest", str(run.path)])) if pictures else None


def picture(pool: Pool, position: int, *lines: str) -> Picture:
    """Return an image of a pool; below it stand these lines, and then the name of its file."""
    name, data, cache_dir = pool.images.call(position), pool.settings.data.name, pool.settings.runtime.cache_dir
    return Picture(name, thumbnail(data, pool.images, position, cache_dir), (*lines, Path(name).name))
