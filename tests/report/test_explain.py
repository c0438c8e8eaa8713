"""Why a pseudo label is what it is: entries, votes, and what they add up to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.folders import write_folder

from aggmatch.data import DataSet, Images
from aggmatch.errors import AggMatchError
from aggmatch.methods.aggmatch.method import AggMatch
from aggmatch.report.explain import (
    Explanation,
    explain,
    explain_run,
    heading,
    panel,
    panels,
    table,
    three_digits,
    voters,
    votes,
)
from aggmatch.report.labels import changes_of, most_changed
from aggmatch.report.pseudo_labels import pseudo_labels, pseudo_labels_at
from aggmatch.runs.stored import RunRecord, read_runs

INDICES = [4, 700, 1000]


@pytest.fixture(scope="module")
def whole(aggmatch_run: RunRecord) -> list[Explanation]:
    """Explanations that list every entry of the queue."""
    return explain_run(aggmatch_run, INDICES, top=10_000)


def test_the_shares_of_all_entries_sum_to_one_and_make_the_refined_distribution(whole: list[Explanation]):
    for why in whole:
        assert len(why.entries) == why.filled
        assert sum(entry.share for entry in why.entries) == pytest.approx(1, abs=1e-4)
        mixed = np.sum([entry.share * entry.probs for entry in why.entries], axis=0)
        assert mixed == pytest.approx(why.refined, abs=1e-4)


def test_the_terms_add_up_to_the_similarity_that_decides_the_share(aggmatch_run: RunRecord, whole: list[Explanation]):
    snapshot = aggmatch_run.snapshot(aggmatch_run.snapshots[-1])
    snapshot.method.config = replace(snapshot.method.config, subsets=1)
    for why in explain(snapshot, aggmatch_run.data(), aggmatch_run.split(), INDICES, top=10_000):
        score = np.array([entry.similarity for entry in why.entries]) / 0.05
        share = np.exp(score - score.max())
        assert [entry.share for entry in why.entries] == pytest.approx(share / share.sum(), rel=1e-3, abs=1e-6)
        for entry in why.entries:
            assert entry.similarity == entry.feature_term + entry.class_term
            assert -1.0001 <= entry.feature_term <= 1.0001
            assert entry.class_term <= 0


def test_everything_else_is_what_aggregation_says(aggmatch_run: RunRecord, whole: list[Explanation]):
    snapshot = aggmatch_run.snapshot(aggmatch_run.snapshots[-1])
    found = pseudo_labels(snapshot, aggmatch_run.data(), aggmatch_run.split(), torch.tensor(INDICES))
    assert found.aggregated is not None
    for row, why in enumerate(whole):
        assert (why.step, why.index, why.truth) == (30, INDICES[row], int(found.truth[row]))
        assert why.own == pytest.approx(found.own[row].numpy(), abs=1e-6)
        assert why.refined == pytest.approx(found.aggregated.probs[row].numpy(), abs=1e-6)
        assert (why.vote == found.aggregated.vote[row].numpy()).all()
        assert why.confidence == pytest.approx(float(found.aggregated.confidence[row]))
        assert why.subsets == why.dealt == 4


def test_entries_come_from_the_queue_the_heaviest_first(aggmatch_run: RunRecord):
    method: AggMatch = aggmatch_run.snapshot(aggmatch_run.snapshots[-1]).method  # type: ignore[assignment]
    queue = method.queue
    (why,) = explain_run(aggmatch_run, [4], top=5)
    shares = [entry.share for entry in why.entries]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    split = aggmatch_run.split()
    labels = dict(zip(split.labeled.tolist(), split.labels.tolist(), strict=True))
    for entry in why.entries:
        slot = (queue.probs[:-1] == torch.from_numpy(entry.probs)).all(1).nonzero()[0, 0]
        assert entry.source == int(queue.source[slot])
        assert entry.given == bool(queue.given[slot])
        assert entry.given_label == (labels[entry.source] if entry.given else -1)
    assert why.filled == int(queue.fill.sum())


def test_the_same_question_gets_the_same_answer(aggmatch_run: RunRecord, whole: list[Explanation]):
    again = explain_run(aggmatch_run, INDICES[:1])[0]
    shares = [entry.share for entry in whole[0].entries[:8]]
    assert [entry.share for entry in again.entries] == pytest.approx(shares, rel=1e-4)
    assert (again.vote == whole[0].vote).all()


def test_a_snapshot_can_be_named(aggmatch_run: RunRecord):
    assert explain_run(aggmatch_run, [4], step=3)[0].step == 3
    with pytest.raises(AggMatchError, match="has no snapshot of step 4. There are: 3, 15, 30."):
        explain_run(aggmatch_run, [4], step=4)


@pytest.mark.parametrize("index", [-1, 1437])
def test_an_index_outside_of_the_training_set_is_refused(aggmatch_run: RunRecord, index):
    with pytest.raises(AggMatchError, match=f"digits has training images 0 to 1436, got {index}."):
        explain_run(aggmatch_run, [index])


def test_a_run_without_a_queue_or_without_snapshots_is_refused(fixmatch_run: RunRecord, tmp_path):
    with pytest.raises(AggMatchError, match="is a run of fixmatch, which has no queue"):
        explain_run(fixmatch_run, [0])
    (new,) = read_runs([write_folder(tmp_path / "run", method="aggmatch")])
    with pytest.raises(AggMatchError, match="has no snapshots yet"):
        explain_run(new, [0])


def test_votes_are_counted_in_subsets(whole: list[Explanation]):
    why = replace(whole[0], vote=np.array([0, 0.75, 0.25], dtype=np.float32), subsets=8)
    assert votes(why, "abc") == "b × 6, c × 2"
    assert votes(replace(why, vote=np.zeros(3, dtype=np.float32), subsets=0), "abc") == "none"


def test_subsets_that_did_not_vote_are_counted(aggmatch_run: RunRecord, whole: list[Explanation]):
    assert voters(whole[0]) == "4 subsets"
    fewer = replace(whole[0], dealt=9)
    assert voters(fewer) == "4 of 9 subsets, the others being empty"
    assert "votes of 4 of 9 subsets, the others being empty: " in heading(fewer, aggmatch_run.data().classes)
    assert "votes of 4 of 9 subsets" in panel(aggmatch_run, [fewer]).caption


def test_terms_have_three_digits_a_minus_sign_and_room_for_it():
    assert [three_digits(term) for term in (0.9504, -0.0204, -0.0004)] == [" 0.950", "−0.020", " 0.000"]


def test_the_table_has_a_row_for_each_entry(aggmatch_run: RunRecord):
    (why,) = explain_run(aggmatch_run, [4])
    shown, data = table(why, aggmatch_run.data()), aggmatch_run.data()
    assert len(shown.rows) == 8
    first, entry = dict(zip(shown.columns, shown.rows[0], strict=True)), why.entries[0]
    assert first["share %"] == 100 * entry.share
    terms = entry.feature_term, entry.class_term, entry.similarity
    assert [first[name] for name in ("cosine", "class term", "sum")] == [three_digits(term) for term in terms]
    assert first["holds"] == str(entry.probs.argmax())
    assert first["image"] == f"{entry.source}{f', given {entry.given_label}' if entry.given else ''}"
    assert first["true class"] == str(int(data.train.labels[entry.source]))
    assert shown.title.startswith(f"Image 4, true class {data.train.labels[4]}: own prediction ")


def test_an_entry_of_unknown_origin_and_the_image_itself_are_said_so(aggmatch_run: RunRecord):
    (why,) = explain_run(aggmatch_run, [4])
    entries = [replace(why.entries[0], source=-1), replace(why.entries[1], source=4, given=True, given_label=7)]
    rows = table(replace(why, entries=entries), aggmatch_run.data()).rows
    assert rows[0][-2:] == [None, None]
    assert rows[1][-2] == "4, given 7, itself"
    panel(aggmatch_run, [replace(why, entries=entries)])


def test_an_image_of_unknown_class_is_explained_too(aggmatch_run: RunRecord, monkeypatch):
    known, split = aggmatch_run.data(), aggmatch_run.split()
    unknown = Images(known.train.pixels, torch.full_like(known.train.labels, -1))
    data = DataSet("digits", unknown, known.test, known.classes, False)
    monkeypatch.setattr(RunRecord, "data", lambda _: data)
    monkeypatch.setattr(RunRecord, "split", lambda _: split)
    explanations = explain_run(aggmatch_run, [4])
    assert "of unknown class" in heading(explanations[0], data.classes)
    assert {row[-1] for row in table(explanations[0], data).rows} == {None}
    assert panel(aggmatch_run, explanations).figure.axes


def test_the_panel_shows_image_distributions_and_entries(aggmatch_run: RunRecord):
    explanations = explain_run(aggmatch_run, [4, 700])
    shown = panel(aggmatch_run, explanations, "As asked for.")
    assert len(shown.figure.axes) == 2 * (1 + 3 + 8)
    titles = [axes.get_title(loc="center") for axes in shown.figure.axes]
    for entry in explanations[0].entries:
        assert f"{100 * entry.share:.0f} %{f' ★ {entry.given_label}' if entry.given else ''}" in titles
    assert "votes of 4 subsets" in shown.caption
    assert "As asked for. aggmatch on digits, 20 labels, fold 0, step 30" in shown.caption


def test_runs_explain_the_labels_that_aggregation_changed_most(rivals: list[RunRecord]):
    (shown,) = panels(rivals)
    by_snapshot = changes_of(rivals[0])
    path = most_changed(by_snapshot)
    index = pseudo_labels_at(rivals[0], path).index
    wanted = {int(index[kind[0]]) for kind in (by_snapshot[path].corrected, by_snapshot[path].spoilt) if len(kind)}
    blocks = shown.figure.subfigs
    assert len(blocks) == len(wanted)
    assert all(any(block.get_suptitle().startswith(f"Image {index},") for block in blocks) for index in wanted)


def test_a_finished_run_without_snapshots_is_not_told_to_wait_for_them(tmp_path):
    (done,) = read_runs([write_folder(tmp_path / "run", [], {}, method="aggmatch", runtime__snapshots=[])])
    message = r"run kept no snapshots \(runtime.snapshots is empty\): only a run with snapshots can be explained."
    with pytest.raises(AggMatchError, match=message):
        explain_run(done, [0])
