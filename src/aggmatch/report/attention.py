"""Where aggregation looks: the attention of images to the slots of the queue, and its mean between classes.

Shape suffixes: B queries, Q slots, M subsets, S slots of a subset, D features, Y classes.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from aggmatch.functional import one_hot
from aggmatch.methods.aggmatch.aggregation import EMPTY, Similarity, similarity_terms
from aggmatch.methods.aggmatch.method import AggMatch, Config
from aggmatch.methods.aggmatch.queue import ClassBalancedQueue
from aggmatch.report.figure import Panel, heat_map, house_style, name_classes, new_figure, slug
from aggmatch.report.gaps import Gaps
from aggmatch.report.pseudo_labels import deal, evenly, has_queue, pseudo_labels_at
from aggmatch.runs.stored import RunRecord, first_folds

IMAGES = 1000
"""Unlabelled images whose attention is averaged."""
BATCH = 100
"""Queries whose attention to every slot is held at once."""


def similarity(feature_BD: Tensor, probs_BY: Tensor, queue: ClassBalancedQueue, config: Config) -> Similarity:
    """Similarity of every query to every slot of the queue, term by term, as `aggregation.aggregate` adds them up."""
    return similarity_terms(
        F.normalize(feature_BD.float(), dim=-1),
        probs_BY,
        queue.feature[:-1],  # without the spare slot
        queue.probs[:-1],
        feature_term=config.feature_term,
        class_term=config.class_term,
        class_weight=config.class_weight,
    )


def attention(score_BQ: Tensor, slot_MS: Tensor, temperature: float) -> Tensor:
    """Share of every slot in the refined pseudo label, (B, Q): p̄_b = Σ_l attention(b, l) · p_l.

    Each subset takes a softmax over its own slots, and the mean over the subsets that have any makes p̄: the rows sum to
    1, or are 0 for an empty queue. slot_MS: `EMPTY` where a subset has no slot.
    """
    slot_MS = slot_MS[(slot_MS != EMPTY).any(1)]
    filled_MS = slot_MS != EMPTY
    score_BMS = score_BQ[:, slot_MS.clamp(min=0)] / temperature
    weight_BMS = score_BMS.masked_fill(~filled_MS, -torch.inf).softmax(-1) / max(len(slot_MS), 1)
    share_BQ = torch.zeros_like(score_BQ)
    share_BQ[:, slot_MS[filled_MS]] = weight_BMS[:, filled_MS]
    return share_BQ


def mean_by_class(to_class_BY: Tensor, query_class_B: Tensor, classes: int) -> Tensor:
    """Mean over the queries of each class, (Y, Y), of their attention to the slots of each class, (B, Y).

    Rows (true class of the query) sum to 1; those of a class without queries are NaN.
    """
    of_class_YB = one_hot(query_class_B, classes).T.float()
    return of_class_YB @ to_class_BY / of_class_YB.sum(1, keepdim=True)


def slot_classes(queue: ClassBalancedQueue, classes: int) -> Tensor:
    """The class under which each slot is held, (Q,): its ring, or the most probable class where there is one ring."""
    if queue.rings == classes:
        return torch.arange(classes, device=queue.fill.device).repeat_interleave(queue.slots)
    return queue.probs[:-1].argmax(1)


# Panels -----------------------------------------------------------------------------------------------------------


def panels(runs: Sequence[RunRecord]) -> Iterator[Panel]:
    """Mean attention between classes at every snapshot, of the first run of each kind that has a queue."""
    gaps = Gaps()
    yield from gaps.each(panel, [run for run in first_folds(runs) if run.snapshots and has_queue(run)])
    gaps.tell()


def panel(run: RunRecord) -> Panel:
    """The terms of the similarity below each other, the snapshots beside each other."""
    maps = {}
    for path in run.snapshots:
        found = pseudo_labels_at(run, path)
        shown = evenly(torch.arange(len(found.index)), IMAGES)
        method: AggMatch = run.snapshot(path).method  # type: ignore[assignment]
        assert found.feature is not None
        maps[found.step] = class_attention(method, found.feature[shown], found.own[shown], found.truth[shown])
    return Panel(
        f"attention-{slug(run.name)}",
        f"Attention between classes, {run.name}",
        f"Mean attention of {len(shown):,} unlabelled images (rows: true class) to the slots of the queue (columns: "
        f"class under which a slot is held) by the terms of the similarity: the cosine of the features alone, the "
        f"class term alone, or both as the method adds them up. Rows sum to 1; above each map, the mean share within "
        f"the class. {run.describe()}; plain images, online network.",
        draw(maps, run.data().classes),
    )


@torch.no_grad()
def class_attention(
    method: AggMatch, feature_BD: Tensor, probs_BY: Tensor, truth_B: Tensor
) -> dict[str, NDArray[np.float32]]:
    """Mean attention between classes by each term of the similarity that is in use, and by all of it; each (Y, Y)."""
    queue, classes = method.queue, method.problem.classes
    memory, device = deal(method), queue.fill.device
    shares: dict[str, list[Tensor]] = {}
    for some_BD, some_BY in zip(feature_BD.split(BATCH), probs_BY.split(BATCH), strict=True):
        terms = similarity(some_BD.to(device), some_BY.to(device), queue, method.config)
        for name, score_BQ in used_terms(terms, method.config).items():
            share_BQ = attention(score_BQ, memory.slot, method.config.similarity_temperature)
            to_class_BY = share_BQ @ one_hot(slot_classes(queue, classes), classes).float()
            shares.setdefault(name, []).append(to_class_BY.cpu())
    return {name: mean_by_class(torch.cat(parts), truth_B, classes).numpy() for name, parts in shares.items()}


def used_terms(terms: Similarity, config: Config) -> dict[str, Tensor]:
    """The terms that the method uses, by name, and their sum where there are two."""
    used = {}
    if config.feature_term:
        used["feature term"] = terms.feature
    if config.class_term != "none":
        used["class term"] = terms.classes
    return used if len(used) < 2 else used | {"both": terms.total}


@house_style()
def draw(maps: dict[int, dict[str, NDArray[np.float32]]], classes: Sequence[str]) -> Figure:
    """A grid of maps with one scale."""
    terms = list(next(iter(maps.values())))
    figure = new_figure(2.15 * len(maps) + 1, 2.35 * len(terms))
    places = figure.subplots(len(terms), len(maps), squeeze=False)
    for column, (step, by_term) in enumerate(maps.items()):
        for row, term in enumerate(terms):
            axes, values = places[row, column], by_term[term]
            image = heat_map(axes, values, power=0.5)
            axes.set_title(f"{np.nanmean(values.diagonal()):.2f}", fontweight="normal", loc="right")
            if row == 0:
                axes.set_title(f"step {step:,}")
            if column == 0:
                axes.set_ylabel(term)
            name_classes(axes, classes, x=row == len(terms) - 1, y=column == 0)
    figure.colorbar(image, ax=places, shrink=0.4, aspect=30, ticks=(0, 0.05, 0.25, 0.5, 1)).outline.set_alpha(0.3)
    figure.supxlabel("class of the slot", size=9)
    figure.supylabel("true class of the image", size=9)
    return figure
