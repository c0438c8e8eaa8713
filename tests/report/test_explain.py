"""Why a pseudo label is what it is: entries, votes, and what they add up to."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.folders import write_folder

from aggmatch.data import DataSet, Images
from aggmatch.errors import AggMatchError
from aggmatch.inference import Snapshot
from aggmatch.report.explain import (
    Explanation,
    describe_voters,
    describe_votes,
    explain,
    explain_run,
    heading,
    image_number,
    panel,
    percent,
    table,
    three_digits,
)
from aggmatch.report.pseudo_labels import pseudo_labels
from aggmatch.runs.stored import StoredRun, read_runs

INDICES = [4, 700, 1000]


@pytest.fixture(scope="module")
def whole(aggmatch_run: StoredRun) -> list[Explanation]:
    """Explanations that list every entry of the queue."""
    return explain_run(aggmatch_run, INDICES, top=10_000)


def test_the_shares_of_all_entries_sum_to_one_and_make_the_refined_distribution(whole: list[Explanation]):
    for why in whole:
        assert len(why.entries) == why.filled
        assert sum(entry.share for entry in why.entries) == pytest.approx(1, abs=1e-4)
        mixed = np.sum([entry.share * entry.probs for entry in why.entries], axis=0)
        assert mixed == pytest.approx(why.refined, abs=1e-4)


def test_the_terms_add_up_to_the_similarity_that_decides_the_share(aggmatch_run: StoredRun, whole: list[Explanation]):
    snapshot = Snapshot.load(aggmatch_run.snapshots[-1], aggmatch_run.settings)
    snapshot.method.config = replace(snapshot.method.config, subsets=1)
    for why in explain(snapshot, aggmatch_run.data(), aggmatch_run.split(), INDICES, top=10_000):
        score = np.array([entry.similarity for entry in why.entries]) / 0.05
        share = np.exp(score - score.max())
        assert [entry.share for entry in why.entries] == pytest.approx(share / share.sum(), rel=1e-3, abs=1e-6)
        for entry in why.entries:
            feature_term, class_term = (entry.terms[name] for name in ("feature term", "class term"))
            assert entry.similarity == feature_term + class_term
            assert -1.0001 <= feature_term <= 1.0001
            assert class_term <= 0


def test_everything_else_is_what_aggregation_computes(aggmatch_run: StoredRun, whole: list[Explanation]):
    snapshot = Snapshot.load(aggmatch_run.snapshots[-1], aggmatch_run.settings)
    found = pseudo_labels(snapshot, aggmatch_run.data(), aggmatch_run.split(), torch.tensor(INDICES))
    assert found.aggregated is not None
    for row, why in enumerate(whole):
        assert (why.step, why.index, why.truth) == (30, INDICES[row], int(found.truth[row]))
        assert why.own == pytest.approx(found.own[row].numpy(), abs=1e-6)
        assert why.refined == pytest.approx(found.aggregated.probs[row].numpy(), abs=1e-6)
        assert (why.vote == found.aggregated.vote[row].numpy()).all()
        assert why.confidence == pytest.approx(float(found.aggregated.confidence[row]))
        assert why.voters == why.subsets == 4


def test_entries_come_from_the_queue_the_heaviest_first(aggmatch_run: StoredRun):
    explainer = Snapshot.load(aggmatch_run.snapshots[-1], aggmatch_run.settings).method.explainer()
    assert explainer is not None
    examples = explainer.examples()
    (why,) = explain_run(aggmatch_run, [4], top=5)
    shares = [entry.share for entry in why.entries]
    assert len(shares) == 5
    assert shares == sorted(shares, reverse=True)
    split = aggmatch_run.split()
    labels = dict(zip(split.labeled.tolist(), split.labels.tolist(), strict=True))
    for entry in why.entries:
        slot = (examples.probs == torch.from_numpy(entry.probs)).all(1).nonzero()[0, 0]
        assert entry.source == int(examples.source[slot])
        assert entry.given == bool(examples.given[slot])
        assert entry.given_label == (labels[entry.source] if entry.given else -1)
    assert why.filled == examples.filled


def test_the_same_question_gets_the_same_answer(aggmatch_run: StoredRun, whole: list[Explanation]):
    again = explain_run(aggmatch_run, INDICES[:1])[0]
    shares = [entry.share for entry in whole[0].entries[:8]]
    assert [entry.share for entry in again.entries] == pytest.approx(shares, rel=1e-4)
    assert (again.vote == whole[0].vote).all()


def test_a_snapshot_can_be_named(aggmatch_run: StoredRun):
    assert explain_run(aggmatch_run, [4], step=3)[0].step == 3
    with pytest.raises(AggMatchError, match=r"step 4\. .*3, 15, 30"):
        explain_run(aggmatch_run, [4], step=4)


@pytest.mark.parametrize("index", [-1, 1437])
def test_a_number_outside_of_the_training_set_is_an_error(aggmatch_run: StoredRun, index):
    with pytest.raises(AggMatchError, match=f"0 to 1436, got {index}"):
        explain_run(aggmatch_run, [index])


def test_a_method_that_cannot_explain_is_an_error_that_names_it(fixmatch_run: StoredRun):
    with pytest.raises(AggMatchError, match="run of fixmatch"):
        explain_run(fixmatch_run, [0])


def test_a_run_without_snapshots_is_an_error_with_the_reason(tmp_path):
    (new,) = read_runs([write_folder(tmp_path / "new", method="aggmatch")])
    with pytest.raises(AggMatchError, match="has no snapshots yet"):
        explain_run(new, [0])
    (done,) = read_runs([write_folder(tmp_path / "done", [], {}, method="aggmatch", runtime__snapshots=[])])
    with pytest.raises(AggMatchError, match="runtime.snapshots"):
        explain_run(done, [0])


def test_an_image_is_found_by_number_name_or_file(aggmatch_run: StoredRun, tmp_path):
    assert image_number(aggmatch_run.data(), "7") == 7
    pixels, labels = torch.zeros(2, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1])
    train, test = Images(pixels, labels, ("a/x.png", "b/y.png")), Images(pixels, labels, ("test/a/z.png", "w.png"))
    data = DataSet(str(tmp_path), train, test, ("a", "b"), False)
    (tmp_path / "b").mkdir()
    (tmp_path / "b/y.png").touch()
    assert image_number(data, str(tmp_path / "b/y.png")) == image_number(data, "b/y.png") == 1
    with pytest.raises(AggMatchError, match="w.png is a test image"):
        image_number(data, "w.png")
    (tmp_path / "photos.zip").touch()
    packed = replace(data, name=str(tmp_path / "photos.zip"))
    assert image_number(packed, str(tmp_path / "photos.zip/b/y.png")) == 1, "as predict calls it"


def test_votes_are_counted_in_subsets(whole: list[Explanation]):
    why = replace(whole[0], vote=np.array([0, 0.75, 0.25], dtype=np.float32), voters=8)
    assert describe_votes(why, "abc") == "b × 6, c × 2"
    assert describe_votes(replace(why, vote=np.zeros(3, dtype=np.float32), voters=0), "abc") == "none"


def test_subsets_that_did_not_vote_are_counted(aggmatch_run: StoredRun, whole: list[Explanation]):
    assert describe_voters(whole[0]) == "4 subsets"
    fewer = replace(whole[0], subsets=9)
    assert describe_voters(fewer) == "4 of 9 subsets (the others are empty)"
    assert "votes of 4 of 9 subsets" in heading(fewer, aggmatch_run.data().classes)
    assert "votes of 4 of 9 subsets" in panel(aggmatch_run, [fewer]).caption


def test_terms_have_three_digits_a_minus_sign_and_room_for_it():
    assert [three_digits(term) for term in (0.9504, -0.0204, -0.0004)] == [" 0.950", "−0.020", " 0.000"]


def test_small_shares_differ_from_zero_and_from_each_other():
    assert [percent(share) for share in (1.0, 0.123, 0.0784, 0.0123, 0.00056, 0.00004)] == [
        "100",
        "12",
        "7.8",
        "1.2",
        "0.056",
        "0.0040",
    ]


def test_the_table_has_a_row_for_each_entry(aggmatch_run: StoredRun):
    (why,) = explain_run(aggmatch_run, [4])
    shown, data = table(why, aggmatch_run.data()), aggmatch_run.data()
    assert len(shown.rows) == 8
    first, entry = dict(zip(shown.columns, shown.rows[0], strict=True)), why.entries[0]
    assert first["share %"] == f"{100 * entry.share:7.3f}"
    terms = *entry.terms.values(), entry.similarity
    assert [first[name] for name in ("feature term", "class term", "sum")] == [three_digits(term) for term in terms]
    assert first["holds"] == str(entry.probs.argmax())
    assert first["image"] == f"{entry.source}{f', given {entry.given_label}' if entry.given else ''}"
    assert first["true class"] == str(int(data.train.labels[entry.source]))
    assert shown.title.startswith(f"Image 4, true class {data.train.labels[4]}: own prediction ")


def test_an_entry_of_unknown_origin_and_the_image_itself_are_marked(aggmatch_run: StoredRun):
    (why,) = explain_run(aggmatch_run, [4])
    entries = [replace(why.entries[0], source=-1), replace(why.entries[1], source=4, given=True, given_label=7)]
    rows = table(replace(why, entries=entries), aggmatch_run.data()).rows
    assert rows[0][-2:] == [None, None]
    assert rows[1][-2] == "4, given 7, itself"
    panel(aggmatch_run, [replace(why, entries=entries)])


def test_an_image_of_unknown_class_is_explained_too(aggmatch_run: StoredRun, monkeypatch):
    known, split = aggmatch_run.data(), aggmatch_run.split()
    unknown = Images(known.train.pixels, torch.full_like(known.train.labels, -1))
    data = DataSet("digits", unknown, known.test, known.classes, False)
    monkeypatch.setattr(StoredRun, "data", lambda _: data)
    monkeypatch.setattr(StoredRun, "split", lambda _: split)
    explanations = explain_run(aggmatch_run, [4])
    assert "of unknown class" in heading(explanations[0], data.classes)
    assert {row[-1] for row in table(explanations[0], data).rows} == {None}
    shown = panel(aggmatch_run, explanations)
    assert shown.plots
    assert "true class" not in shown.caption


def test_each_plot_shows_an_image_its_distributions_and_entries(aggmatch_run: StoredRun):
    explanations = explain_run(aggmatch_run, [4, 700])
    shown = panel(aggmatch_run, explanations, "As asked for.")
    assert shown.name == "explain-aggmatch-fold-0"
    assert [plot.name for plot in shown.plots] == ["image-4", "image-700"]
    for plot, why in zip(shown.plots, explanations, strict=True):
        assert plot.heading == heading(why, aggmatch_run.data().classes)
        assert len(plot.figure.axes) == 1 + 3 + 8
        titles = [axes.get_title(loc="center") for axes in plot.figure.axes]
        for entry in why.entries:
            assert f"{f'★ {entry.given_label}' if entry.given else ''}\n{percent(entry.share)} %" in titles
    assert "votes of 4 subsets" in shown.caption
    assert "true class" in shown.caption
    assert "As asked for. aggmatch (paper recipe) on digits, 20 labels, fold 0, step 30" in shown.caption


def test_any_number_of_entries_has_room(aggmatch_run: StoredRun):
    for top, axes in ((1, 4 + 4), (10, 4 + 12)):
        (plot,) = panel(aggmatch_run, explain_run(aggmatch_run, [4], top=top)).plots
        assert len(plot.figure.axes) == axes
