"""Which pseudo labels are doubtful."""

import torch

from aggmatch.functional import Aggregate
from aggmatch.report.figures import draw
from aggmatch.report.figures.labels import EACH, confidently_overruled, describe_choice, least_sure
from aggmatch.report.pseudo_labels import PseudoLabeled, pseudo_labels_at
from aggmatch.runs.stored import StoredRun

OWN = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
REFINED = torch.tensor([[0.9, 0.1], [0.1, 0.9], [0.7, 0.3], [0.7, 0.3]])
CONFIDENCE = torch.tensor([0.5, 0.8, 0.9, 0.5])


def found() -> PseudoLabeled:
    return PseudoLabeled(
        step=1,
        index=torch.tensor([10, 20, 30, 40]),
        truth=torch.zeros(4, dtype=torch.long),
        own=OWN,
        aggregated=Aggregate(REFINED, REFINED, CONFIDENCE),
        refines=True,
    )


def test_the_least_sure_come_first_and_of_equals_the_earlier():
    assert least_sure(found(), 3).tolist() == [0, 3, 1]


def test_only_labels_that_aggregation_changed_are_overruled_most_sure_first():
    assert confidently_overruled(found(), 5).tolist() == [2, 1]
    assert confidently_overruled(found(), 1).tolist() == [2]


def test_the_rule_of_the_choice_is_stated():
    assert describe_choice(1397, 2, 1) == (
        "Shown, out of 1,397: the 2 with the least consensus; then the 1 with the most consensus among those whose "
        "refined class is not the network's own."
    )
    assert "no image has a refined class" in describe_choice(10, 2, 0)


def test_doubtful_labels_of_the_last_snapshot_are_explained(rivals: list[StoredRun]):
    ((_, panel),) = draw(rivals, ["doubts"])
    assert panel.name == "doubts-aggmatch-fold-0"
    found = pseudo_labels_at(rivals[0], rivals[0].snapshots[-1])
    unsure = found.index[least_sure(found, EACH)].tolist()
    assert [plot.name for plot in panel.plots][:EACH] == [f"image-{index}" for index in unsure]
    assert "step 30" in panel.caption
