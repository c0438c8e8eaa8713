"""How good is the estimated accuracy on small tasks, also on easy ones? Prints a line per task, then means.

    python -m benchmarks.small_tasks --data-dir DIR      # some minutes on two cores

Two, three or ten classes of CIFAR-10, enlarged to 112 pixels, from the pools of folds 10 to 14 of `frozen.py`, with 4,
10 or 25 labels per class, drawn at random. The model is self-training on frozen features, which takes a second.
"""

import argparse
from statistics import mean

import numpy as np
import torch
from benchmarks.frozen import BACKBONE, draw_pool
from numpy.typing import NDArray
from torch import Tensor

from aggmatch import resolve
from aggmatch.features.accuracy import Judged, judge
from aggmatch.features.self_training import self_trained
from aggmatch.training.crossval import assign_folds
from aggmatch.training.inputs import pretrained_store

TASKS = [[0, 1], [0, 1, 6], [2, 3, 5], list(range(10))]
"""Airplanes and automobiles; and frogs; birds, cats and dogs; all."""


def estimate(feature_ND: Tensor, truth_N: Tensor, labeled_L: Tensor) -> tuple[float, Judged]:
    """Return the true accuracy on the images without a label, in percent, and the estimated one."""
    labels_L, classes = truth_N[labeled_L], int(truth_N.max()) + 1
    probs_NY = self_trained(feature_ND, labeled_L, labels_L, classes).logits(feature_ND).softmax(1)
    unseen: dict[int, NDArray[np.float32]] = {}
    for fold in assign_folds(labels_L):
        kept = torch.ones(len(labels_L), dtype=torch.bool)
        kept[fold] = False
        model = self_trained(feature_ND, labeled_L[kept], labels_L[kept], classes)
        left_out = labeled_L[fold]
        unseen |= dict(zip(left_out.tolist(), model.logits(feature_ND[left_out]).softmax(1).numpy(), strict=True))
    free = torch.ones(len(truth_N), dtype=torch.bool)
    free[labeled_L] = False
    true = 100 * float((probs_NY.argmax(1) == truth_N)[free].float().mean())
    return true, judge(
        feature_ND, probs_NY.numpy(), unseen, dict(zip(labeled_L.tolist(), labels_L.tolist(), strict=True))
    )


def main() -> None:
    """Print the accuracies of all tasks, and how far the estimates are off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", default="data")
    options = parser.parse_args()
    found = []
    for fold in range(10, 15):
        pool = draw_pool(options.data_dir, fold).train
        settings = resolve({"data.name": "cifar10", "model.name": BACKBONE, "train.backbone": "frozen"})
        feature_ND = pretrained_store(settings, pool.pixels).averaged(pool.pixels)
        for classes in TASKS:
            member = torch.isin(pool.labels, torch.tensor(classes))
            truth = torch.searchsorted(torch.tensor(classes), pool.labels[member])
            for count in (4, 10, 25):
                generator = torch.Generator().manual_seed(100 * fold + count)
                places = [(truth == label).nonzero()[:, 0] for label in range(len(classes))]
                drawn = [place[torch.randperm(len(place), generator=generator)[:count]] for place in places]
                true, judged = estimate(feature_ND[member], truth, torch.cat(drawn))
                found.append((true, judged))
                task = f"fold {fold}, {len(classes)} classes, {count} labels each"
                print(f"{task}: {true:.1f}, estimated {judged.accuracy:.1f} ({judged.low:.0f} to {judged.high:.0f})")
    wrong = mean(abs(true - judged.accuracy) for true, judged in found)
    width = mean(judged.high - judged.low for _, judged in found)
    held = sum(judged.low <= true <= judged.high for true, judged in found)
    print(f"mean error {wrong:.1f}, mean width {width:.1f}, {held} of {len(found)} intervals hold")


if __name__ == "__main__":
    main()
