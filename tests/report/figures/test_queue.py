"""Fill of the queue over the steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from tests.folders import line, write_folder

from aggmatch.report.figure import Panel
from aggmatch.report.figures import draw
from aggmatch.report.figures.training import decades, describe_full, queue_fill
from aggmatch.runs.stored import read_runs


def queue_of(folder: Path) -> tuple[Panel, Axes]:
    """The panel of a run's queue, and the axes of its only plot."""
    ((name, panel),) = draw(read_runs([folder]), ["queue"])
    assert name == "queue"
    assert panel.name == "queue-aggmatch-fold-0"
    (plot,) = panel.plots
    (axes,) = plot.figure.axes
    return panel, axes


def places(drawn: Any) -> list[float]:
    return list(drawn.get_xdata())


def heights(drawn: Any) -> list[float]:
    return list(drawn.get_ydata())


def test_the_queue_is_shown_ring_by_ring(tmp_path):
    records = [line(5, queue_fill=[1] * 9 + [3]), line(10, queue_fill=[2] * 9 + [4])]
    folder = write_folder(tmp_path / "run", records, {}, method="aggmatch", method__slots=4)
    (run,) = read_runs([folder])
    steps, fill = queue_fill(run) or ([], None)
    assert steps == [5, 10]
    assert fill is not None
    assert fill[[0, 9]].tolist() == [[1, 2], [3, 4]]
    panel, axes = queue_of(folder)
    assert "of 4 for each class" in panel.caption
    assert "9 of 10 not full" in panel.caption
    assert [text.get_text() for text in axes.texts] == ["2"] * 9 + ["4"]
    assert places(axes.lines[0]) == [0, 5, 10]
    assert heights(axes.lines[0]) == pytest.approx([0.4, 0.2, 0]), "from the lower edge of its row to the middle"
    assert heights(axes.lines[9]) == pytest.approx([9.4, 8.8, 8.6]), "to its upper edge"


def test_the_caption_says_when_the_whole_queue_was_full():
    assert describe_full([5, 10, 20], np.array([[4, 4, 4], [1, 4, 4]]), 4) == "all full at step 10"
    assert describe_full([5, 10, 20], np.array([[4, 4, 4], [1, 2, 3]]), 4) == "1 of 2 not full"


@pytest.mark.parametrize(("summary", "top"), [({}, 0.4 - 0.8 * 6 / 40), (None, -0.4)])
def test_one_ring_has_the_slots_of_all_classes_if_their_number_is_known(tmp_path, summary, top):
    changes = {"method": "aggmatch", "method__slots": 4, "method__class_balanced": False}
    folder = write_folder(tmp_path / "run", [line(5, queue_fill=[3]), line(10, queue_fill=[6])], summary, **changes)  # type: ignore[arg-type]
    panel, axes = queue_of(folder)
    assert "in one ring for all classes" in panel.caption
    assert ("1 of 1 not full" in panel.caption) == (summary is not None)
    assert heights(axes.lines[0])[-1] == pytest.approx(top)


def test_steps_close_to_each_other_are_not_both_named():
    assert decades(100, 60_000) == [0, 100, 1000, 10_000, 60_000]
    assert decades(60, 150) == [0, 60, 150]
    assert decades(5, 5) == [0, 5]


def test_a_run_without_a_queue_has_no_panel(tmp_path):
    assert not list(draw(read_runs([write_folder(tmp_path / "run", [line(5)])]), ["queue"]))


def test_the_queue_of_a_method_with_an_unknown_number_of_slots_is_shown_without_it(tmp_path):
    folder = write_folder(tmp_path / "run", [line(5, queue_fill=[1, 2])])
    ((_, panel),) = draw(read_runs([folder]), ["queue"])
    assert "queue, for each class," in panel.caption
