"""The images that aggregation changed most."""

import torch

from aggmatch.report.figures import draw, labels
from aggmatch.report.pseudo_labels import Changes, changes_of, most_changed, pseudo_labels_at
from aggmatch.runs.stored import StoredRun


def test_the_labels_that_aggregation_changed_most_are_explained(rivals: list[StoredRun]):
    ((_, shown),) = draw(rivals, ["explain"])
    by_snapshot = changes_of(rivals[0])
    path = most_changed(by_snapshot)
    found = pseudo_labels_at(rivals[0], path)
    changed = by_snapshot[path]
    wanted = [int(found.index[kind[0]]) for kind in (changed.corrected, changed.spoiled) if len(kind)]
    assert [plot.name for plot in shown.plots] == [f"image-{index}" for index in wanted]
    assert all(plot.heading.startswith(f"Image {index},") for plot, index in zip(shown.plots, wanted, strict=True))
    assert f"step {found.step}" in shown.caption


def test_a_run_in_which_aggregation_changed_nothing_has_no_panel(aggmatch_run: StoredRun, monkeypatch):
    nothing = torch.arange(0)
    unchanged = {path: Changes(nothing, nothing, nothing) for path in aggmatch_run.snapshots}
    monkeypatch.setattr(labels, "changes_of", lambda _: unchanged)
    assert not list(draw([aggmatch_run], ["explain"]))
