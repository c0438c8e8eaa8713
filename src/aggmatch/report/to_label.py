"""What to label next, for the report on a run."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from aggmatch.errors import AggMatchError
from aggmatch.features.active import suggest
from aggmatch.inference.pool import pool_of_run
from aggmatch.report.contact_sheet import Picture
from aggmatch.report.test_results import thumbnail
from aggmatch.runs.stored import StoredRun
from aggmatch.settings import parts_named

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
    here, allowed = {"runtime.device": run.settings.runtime.device}, parts_named(run.settings.to_dict())
    try:
        pool = pool_of_run(run.folder.path, here, allow=allowed)  # the run was read, so its code is allowed
    except AggMatchError:  # other parts of the page say what is wrong with the images
        return None
    assert pool.probs is not None, "a run has predictions"
    chosen = suggest(pool.features, pool.labeled.tolist(), SHOWN, probs_NY=pool.probs)
    pictures = [
        Picture(
            pool.images.call(position),
            thumbnail(pool.settings.data.name, pool.images, position, pool.settings.runtime.cache_dir),
            (
                f"{pool.classes[int(probs.argmax())]}?",
                f"{float(probs.max()):.2f}",
                Path(pool.images.call(position)).name,
            ),
        )
        for position, probs in zip(chosen, pool.probs[chosen], strict=True)
    ]
    return ToLabel(pictures, shlex.join(["aggmatch", "suggest", str(run.path)])) if pictures else None
