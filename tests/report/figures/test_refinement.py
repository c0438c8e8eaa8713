"""Single pseudo labels before and after aggregation."""

import pytest
import torch
from tests.folders import write_folder

from aggmatch.report.figures import draw
from aggmatch.report.figures.labels import examples
from aggmatch.report.pseudo_labels import Changes, changes_of, most_changed, pseudo_labels_at
from aggmatch.runs.stored import StoredRun, read_runs


def test_examples_are_a_few_of_each_kind():
    found = Changes(torch.tensor([9, 8, 7]), torch.tensor([6]), torch.arange(5))
    assert examples(found, 2) == {"corrected": [9, 8], "spoiled": [6], "kept": [0, 2]}
    nothing = torch.arange(0)
    assert examples(Changes(nothing, nothing, torch.arange(1))) == {"kept": [0]}


def test_the_caption_counts_what_aggregation_did_at_every_snapshot(aggmatch_run: StoredRun):
    ((_, panel),) = draw([aggmatch_run], ["refinement"])
    assert panel.name == "refinement-aggmatch-fold-0"
    by_snapshot = changes_of(aggmatch_run)
    for path, found in by_snapshot.items():
        step = pseudo_labels_at(aggmatch_run, path).step
        assert f"step {step}: {len(found.corrected)} and {len(found.spoiled)}" in panel.caption
    shown = examples(by_snapshot[most_changed(by_snapshot)])
    assert {plot.name: len(plot.figure.axes) for plot in panel.plots} == {
        kind: 3 * len(positions) for kind, positions in shown.items()
    }


@pytest.mark.parametrize("method", ["fixmatch", "aggmatch"])
def test_runs_without_snapshots_have_no_panel(tmp_path, method):
    assert not list(draw(read_runs([write_folder(tmp_path / "run", method=method)]), ["labels"]))


def test_a_method_that_does_not_explain_itself_has_no_panel(fixmatch_run: StoredRun):
    assert not list(draw([fixmatch_run], ["refinement", "doubts", "explain", "attention"]))
