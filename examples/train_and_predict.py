"""Train AggMatch on digits with 40 labels, then predict test images: python train_and_predict.py"""

import argparse

import aggmatch

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--out", default="runs/train-and-predict")
arguments = parser.parse_args()

# Every setting that is not named here comes from the recipe of the data set and the method.
settings = aggmatch.resolve({"data.name": "digits", "data.labels": 40, "train.steps": arguments.steps})
run = aggmatch.start(settings, arguments.out)
for record in run.train():  # one record per log step
    if "accuracy_average" in record:
        print(f"step {record['step']}: test accuracy {record['accuracy_average']:.1f} %")

model = aggmatch.TrainedModel.load(arguments.out)
images, labels = run.data.test.pixels[:8], run.data.test.labels[:8]
probs = model.predict(images)  # uint8 images (N, C, side, side) -> probabilities (N, Y)
for predicted, p, label in zip(probs.argmax(1), probs.max(1).values, labels, strict=True):
    print(f"predicted {model.classes[predicted]} with {100 * p:.0f} %, the digit is {model.classes[label]}")
