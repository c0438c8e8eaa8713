"""Compare methods on the same labelled images: python compare_methods.py

On the command line: aggmatch compare digits --labels 40 --folds 2 --methods supervised,fixmatch,aggmatch
"""

import argparse
from pathlib import Path
from statistics import mean

import aggmatch

METHODS = ("supervised", "fixmatch", "aggmatch")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--folds", type=int, default=2, help="draws of the labelled images")
parser.add_argument("--out", type=Path, default=Path("runs/compare-methods"))
arguments = parser.parse_args()

accuracies: dict[tuple[str, str], list[float]] = {}
for method in METHODS:
    for fold in range(arguments.folds):
        settings = aggmatch.resolve(
            {
                "data.name": "digits",
                "data.labels": 40,
                "data.fold": fold,  # the same fold has the same labelled images for every method
                "method.name": method,
                "train.steps": arguments.steps,
            }
        )
        *_, last = aggmatch.start(settings, arguments.out / method / f"fold{fold}").train()
        accuracies.setdefault((method, settings.recipe), []).append(last["accuracy_average"])

print("method      recipe      accuracy %  by fold")
for (method, recipe), values in sorted(accuracies.items(), key=lambda item: -mean(item[1])):
    print(f"{method:<11} {recipe:<11} {mean(values):10.1f}  {', '.join(f'{value:.1f}' for value in values)}")
