"""Fit, score and cross-validate arrays as with scikit-learn, most of them without a label: python scikit_learn.py

Needs no files: the digits come with scikit-learn. `AggMatchClassifier` also takes colour images and lists of files.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score, train_test_split

import aggmatch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out", type=Path, default=Path("runs/scikit-learn"))
arguments = parser.parse_args()

digits = load_digits()
images, test_images, truth, test_labels = train_test_split(digits.images, digits.target, random_state=0)
labels = np.full_like(truth, -1)  # −1: no label
for digit in range(10):
    labels[np.flatnonzero(truth == digit)[:4]] = digit

classifier = aggmatch.AggMatchClassifier(
    steps=arguments.steps,
    value_range=(0, 16),  # black and white of these images; bytes and values from 0 to 1 need nothing
    settings={
        "model.name": "small-16",
        "train.batch": 30,
        "method.slots": 64,  # a queue for few images
        "method.subsets": 8,
        "views.flip": False,  # a mirrored digit is no digit
    },
    random_state=0,
    run_dir=arguments.out,  # optional: keeps the run, for reports
)
classifier.fit(images, labels)
print(f"test accuracy {100 * classifier.score(test_images, test_labels):.1f} % with {np.sum(labels >= 0)} labels")
print("first digits:", *classifier.predict(test_images[:8]), "of", *test_labels[:8])

folds = cross_val_score(classifier.set_params(run_dir=None, steps=arguments.steps // 10), images, labels, cv=2)
print(f"cross-validation, on images with a label: {', '.join(f'{100 * score:.0f} %' for score in folds)}")
