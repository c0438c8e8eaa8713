"""Train on a folder of images and predict new files: python own_folder.py [FOLDER]

FOLDER has a subfolder per class with a few labelled images, and `unlabeled` with the others. Without FOLDER, the script
makes a small one: discs and squares in different colours.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import aggmatch


def make_folder(folder: Path) -> Path:
    """Draw 6 labelled, 10 test and 80 unlabelled images of two classes."""
    random = np.random.default_rng(0)
    for part, count in (("{}", 6), ("test/{}", 10), ("unlabeled", 80)):
        for number in range(count):
            for shape in ("disc", "square"):
                image = Image.new("RGB", (24, 24), tuple(random.integers(0, 90, 3).tolist()))
                x, y, size = random.integers(2, 10, 3).tolist()
                drawing = ImageDraw.Draw(image)
                draw = drawing.ellipse if shape == "disc" else drawing.rectangle
                draw((x, y, x + size + 3, y + size + 3), fill=tuple(random.integers(150, 256, 3).tolist()))
                file = folder / part.format(shape) / f"{shape}{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                image.save(file)
    return folder


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("folder", nargs="?", type=Path)
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--out", type=Path, default=Path("runs/own-folder"))
arguments = parser.parse_args()
folder = arguments.folder or make_folder(arguments.out.with_name("shapes"))

# A small network and small images, so that it trains on a CPU; leave these out if you have a GPU.
small = {"model.name": "small-16", "data.side": 16, "train.batch": 8, "train.unlabeled_ratio": 4}
settings = aggmatch.resolve({"data.name": str(folder), "train.steps": arguments.steps, **small})
run = aggmatch.start(settings, arguments.out)
for record in run.train():
    print(f"step {record['step']}: loss {record['loss']:.3f}")

model = aggmatch.TrainedModel.load(arguments.out)
for file, probs in model.predict_files(sorted((folder / "unlabeled").iterdir())[:5]):
    print(f"{file.name}: {model.classes[probs.argmax()]} ({100 * float(probs.max()):.0f} %)")
