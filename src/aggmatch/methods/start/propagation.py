"""The propagation phase: given labels spread over the graph of neighbours, and the clearest results are pseudo labels.

Learning from its own predictions, a network confirms its errors: a class that it has lost stays lost. Here every
propagation starts again from the given labels alone, in the newest features, so that errors can be corrected.

Shape suffixes: N images, D features, Y classes, K neighbours, B samples.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aggmatch.functional import PseudoLabels, mean_cross_entropy, one_hot
from aggmatch.methods.base import Batch, Problem, StepResult, TrainingSet, Views, forward_together
from aggmatch.models import Network, frozen_statistics, images_at_once

SPREAD = 0.99
"""α: share of its neighbours in the distribution of an image; the rest is its given label."""
ITERATIONS = 50
TEMPERATURE = 0.07
"""Of the cosine of two neighbours."""
FLATTEST = 1e-6
"""Least variance of a principal direction of the features, as a share of the largest one."""
BALANCING = 20
"""Iterations of the balancing of classes."""
PAIRS = 2**26
"""Pairs of images to compare at once."""


class Propagation(nn.Module):
    """Learns from labels that are propagated again and again, first from few of them, then from more.

    steps: of the phase. times: number of propagations in it. shares: of the images whose propagated label counts, at
    first and at last. by_class: part of them that is chosen class by class. neighbours: K.
    """

    views = Views(labeled=("weak", "strong"), unlabeled=("strong",))
    label: Tensor  # (N,) propagated labels of all training images
    weight: Tensor  # (N,) 1 where they count, else 0

    def __init__(
        self,
        problem: Problem,
        *,
        steps: int,
        times: int,
        shares: tuple[float, ...],
        by_class: float,
        neighbours: int,
    ) -> None:
        super().__init__()
        self.class_shares = problem.class_shares or (1 / problem.classes,) * problem.classes
        self.shares, self.by_class, self.neighbours = shares, by_class, neighbours
        self.every = max(1, steps // times)
        self.last = max(1, (steps - 1) // self.every)
        self.register_buffer("label", torch.zeros(problem.images, dtype=torch.long))
        self.register_buffer("weight", torch.zeros(problem.images))

    def begin(self, average: Network, training: TrainingSet) -> None:
        """Keep what `refresh` needs, outside of the parts of this module."""
        self.sources = Sources(average, training, torch.cat([training.labeled, training.unlabeled]).unique())

    @torch.no_grad()
    def refresh(self, step: int) -> None:
        """Propagate the labels again if it is time for it; `step` counts from the beginning of the phase."""
        if step % self.every:
            return
        network, training, member_N = self.sources
        feature_ND = mixed_features(network, training, member_N)
        given_N = torch.searchsorted(member_N, training.labeled)
        shares_Y = torch.tensor(self.class_shares, device=feature_ND.device)
        probs_NY = propagate(feature_ND, given_N, training.labels, shares_Y, self.neighbours)
        first, last = self.shares
        share = first + (last - first) * min(1.0, step // self.every / self.last)
        self.label[member_N] = probs_NY.argmax(-1)
        self.weight[member_N] = clearest(probs_NY, share, self.by_class).float()

    def step(self, batch: Batch, online: Network) -> StepResult:
        """L = mean CE(y, p(x)) over weak and strong views of labelled images + mean w · CE(ŷ, p(A(u)))."""
        *labeled, strong = forward_together(online, *batch.labeled, *batch.unlabeled)
        pseudo = PseudoLabels(self.label[batch.unlabeled_index], self.weight[batch.unlabeled_index])
        loss_labeled = mean_cross_entropy([view.logits for view in labeled], batch.labels)
        cost_B = F.cross_entropy(strong.logits, pseudo.target, reduction="none")
        loss_unlabeled = (pseudo.weight * cost_B).mean()
        parts = {"loss_labeled": loss_labeled, "loss_unlabeled": loss_unlabeled}
        return StepResult(loss_labeled + loss_unlabeled, parts, pseudo)


class Sources(NamedTuple):
    """Where propagation takes features from; a tuple, so that the network does not become a part of the method."""

    network: Network
    training: TrainingSet
    member: Tensor
    """Positions of the images that the run uses, with a label or without, (N,), ascending."""


def mixed_features(network: Network, training: TrainingSet, index_N: Tensor) -> Tensor:
    """Return the features of plain images, (N, D), by the statistics of mixed batches, not by the running ones.

    Running statistics are those of crops or strong views. All batches have the same size, as several processes need.
    """
    count, world = len(index_N), network.processes.world if network.processes else 1
    size = max(images_at_once(training.pixels.shape[-1]) // world, 1) * world
    order_N = torch.randperm(count, generator=torch.Generator().manual_seed(0)).to(index_N.device)
    padded = torch.arange(-(-count // size) * size, device=index_N.device) % count
    was_training = network.training
    network.train()
    with frozen_statistics(network):
        parts = [network(training.pixels[index_N[order_N[row]]]).feature for row in padded.split(size)]
    network.train(was_training)
    shuffled_ND = torch.cat(parts)[:count]
    return torch.empty_like(shuffled_ND).index_copy_(0, order_N, shuffled_ND)


def propagate(feature_ND: Tensor, given_N: Tensor, labels_N: Tensor, shares_Y: Tensor, neighbours: int) -> Tensor:
    """Spread given labels over the graph of neighbours, then balance the classes; (N, Y), rows sum to 1 or are 0.

    Z ← α · D^-½ W D^-½ Z + (1 − α) · Y,   W = A + Aᵀ,   A_ij = exp(cos(f_i, f_j) / t) for the K neighbours j of i

    f: rows of `feature_ND`, flattened. given_N, labels_N: rows with a given label, and these labels; at the end they
    have it with certainty. shares_Y: class shares of the result before rows are normalised for the last time. A row is
    0 if no label reaches it.
    """
    unit_ND = F.normalize(flattened(feature_ND.float()), dim=-1)
    graph_NN = neighbour_graph(unit_ND, min(neighbours, len(unit_ND) - 1))
    given_NY = unit_ND.new_zeros(len(unit_ND), len(shares_Y))
    given_NY[given_N] = one_hot(labels_N, len(shares_Y)).float()
    probs_NY = given_NY.clone()
    for _ in range(ITERATIONS):
        probs_NY = SPREAD * torch.sparse.mm(graph_NN, probs_NY) + (1 - SPREAD) * given_NY
    tiny = torch.finfo(probs_NY.dtype).tiny
    for _ in range(BALANCING):
        probs_NY = probs_NY * (shares_Y / probs_NY.sum(0).clamp(min=tiny))
        probs_NY = probs_NY / probs_NY.sum(1, keepdim=True).clamp(min=tiny)
    probs_NY[given_N] = given_NY[given_N]
    return probs_NY


def flattened(feature_ND: Tensor) -> Tensor:
    """Return centred features with every principal direction divided by the root of its deviation, (N, D).

    x ← (x − mean) · V · λ^-¼   with the eigenvectors V and eigenvalues λ of the covariance

    It is half of a whitening: few directions would decide alone which images are neighbours, but those of small
    variance are mostly noise. If a network has diverged, the result is not finite.
    """
    centred_ND = feature_ND - feature_ND.mean(0)
    covariance_DD = (centred_ND.T @ centred_ND).double() / len(centred_ND)
    variance_D, direction_DD = torch.linalg.eigh(covariance_DD.nan_to_num())  # it fails with NaN; the loop reports it
    least = (FLATTEST * variance_D.max()).clamp(min=torch.finfo(torch.float32).tiny)  # images may all be alike
    scale_D = variance_D.clamp(min=least) ** -0.25
    return centred_ND @ (direction_DD * scale_D).to(centred_ND.dtype)


def neighbour_graph(unit_ND: Tensor, neighbours: int) -> Tensor:
    """Return D^-½ W D^-½, (N, N), sparse. unit_ND: unit vectors."""
    count, device = len(unit_ND), unit_ND.device
    cosines, indices = [], []
    for row_B in torch.arange(count, device=device).split(max(1, PAIRS // count)):
        cosine_BN = unit_ND[row_B] @ unit_ND.T
        cosine_BN[torch.arange(len(row_B), device=device), row_B] = -torch.inf
        cosine_BK, index_BK = cosine_BN.topk(neighbours)
        cosines.append(cosine_BK)
        indices.append(index_BK)
    from_E = torch.arange(count, device=device).repeat_interleave(neighbours)
    to_E = torch.cat(indices).flatten()
    weight_E = (torch.cat(cosines).flatten() / TEMPERATURE).exp()
    edge_2E = torch.cat([torch.stack([from_E, to_E]), torch.stack([to_E, from_E])], dim=1)
    graph_NN = torch.sparse_coo_tensor(edge_2E, weight_E.repeat(2), (count, count), check_invariants=False).coalesce()
    from_E, to_E = graph_NN.indices()
    degree_N = torch.sparse.sum(graph_NN, 1).to_dense()
    weight_E = graph_NN.values() * (degree_N[from_E] * degree_N[to_E]).rsqrt()
    return torch.sparse_coo_tensor(
        graph_NN.indices(), weight_E, (count, count), is_coalesced=True, check_invariants=False
    )


def clearest(probs_NY: Tensor, share: float, by_class: float = 0.0) -> Tensor:
    """Return which rows have the largest margins between their two largest values, (N,) bool.

    share: of all rows. by_class: part of them that is chosen class by class, from the rows whose largest value is that
    of the class; the rest are the clearest of all rows. A row may be chosen in both ways, so fewer may be chosen then.
    Rows with two equal largest values, such as rows of zeros, have no class and are not chosen.
    """
    best_N2, class_N2 = probs_NY.topk(2, dim=-1)
    margin_N, class_N = best_N2[:, 0] - best_N2[:, 1], class_N2[:, 0]
    order_N = margin_N.argsort(descending=True, stable=True)
    member_NY = one_hot(class_N[order_N], probs_NY.shape[-1]) & (margin_N[order_N, None] > 0)
    rank_N = member_NY.cumsum(0).gather(1, class_N[order_N, None]).squeeze(1) - 1  # within its class, from 0
    first_N = rank_N < by_class * share * member_NY.sum(0)[class_N[order_N]]
    first_N[: max(1, round((1 - by_class) * share * len(margin_N)))] = True
    return torch.zeros_like(first_N).index_copy_(0, order_N, first_N) & (margin_N > 0)
