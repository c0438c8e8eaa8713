"""Train on a folder of images and predict new files: python own_folder.py [FOLDER]

FOLDER has a subfolder per class with a few labelled images, and `unlabeled` with the others. Without FOLDER, the script
makes a small one: stripes in different colours that run along rows or columns.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

import aggmatch


def make_folder(folder: Path) -> Path:
    """Draw 6 labelled, 10 test and 80 unlabelled images of two classes."""
    random = np.random.default_rng(0)
    for part, count in (("{}", 6), ("test/{}", 10), ("unlabeled", 80)):
        for number in range(count):
            for name in ("rows", "columns"):
                dark, light = random.integers(0, 100, 3), random.integers(155, 256, 3)
                stripe = (np.arange(24) + random.integers(8)) // 4 % 2  # 0 or 1 along one side
                pixels = np.where(stripe[:, None, None], light, dark) + np.zeros((24, 24, 1))
                pixels = pixels if name == "rows" else pixels.swapaxes(0, 1)
                file = folder / part.format(name) / f"{name}{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels.astype(np.uint8)).save(file)
    return folder


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", type=Path)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out", type=Path, default=Path("runs/own-folder"))
arguments = parser.parse_args()
folder = arguments.folder or make_folder(arguments.out.with_name("stripes"))

# A small network and small images, so that it trains on a CPU; leave these out if you have a GPU.
small = {"model.name": "small-16", "data.side": 16, "train.batch": 8, "train.unlabeled_ratio": 4}
settings = aggmatch.resolve({"data.name": str(folder), "train.steps": arguments.steps, **small})
run = aggmatch.start(settings, arguments.out)
for record in run.train():
    print(f"step {record['step']}: loss {record['loss']:.3f}")

model = aggmatch.TrainedModel.load(arguments.out)
for file, probs in model.predict_files(sorted((folder / "unlabeled").iterdir())[:5]):
    print(f"{file.name}: {model.classes[probs.argmax()]} ({100 * float(probs.max()):.0f} %)")
