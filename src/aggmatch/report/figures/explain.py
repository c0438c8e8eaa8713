"""The pseudo labels that aggregation corrected and spoiled most, explained."""

from collections.abc import Iterator, Sequence

from aggmatch.report.explain import explain_run, panel
from aggmatch.report.figure import Panel, each
from aggmatch.report.figures import Figure
from aggmatch.report.pseudo_labels import changes_of, explained_runs, most_changed, pseudo_labels_at
from aggmatch.runs.stored import StoredRun, snapshot_step


def draw(runs: Sequence[StoredRun]) -> Iterator[Panel]:
    """One panel for each run that explains its pseudo labels and has changed any."""
    yield from each(explain_panel, explained_runs(runs))


def explain_panel(run: StoredRun) -> Panel | None:
    """The images changed most at the snapshot with the most changes; None without any change."""
    by_snapshot = changes_of(run)
    path = most_changed(by_snapshot)
    changed, index = by_snapshot[path], pseudo_labels_at(run, path).index
    chosen = [int(index[position]) for position in (*changed.corrected[:1], *changed.spoiled[:1])]
    if not chosen:
        return None
    words = "Shown: the pseudo labels that aggregation corrected and spoiled most."
    return panel(run, explain_run(run, chosen, step=snapshot_step(path)), words)


FIGURE = Figure(draw, chapter="pseudo-labels", needs="snapshots of a method that explains itself", order=40)
