"""A network of your own, trained with AggMatch on digits: python own_backbone.py

The same file works on the command line: aggmatch train digits --set model.name=own_backbone.py:Residual
"""

import argparse

from torch import Tensor, nn

import aggmatch


class Residual(nn.Module):
    """Two residual blocks; returns features (B, 64), to which a linear classifier is added."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.start = nn.Conv2d(channels, 32, 3, padding=1)
        self.first = nn.Sequential(nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1))
        self.down = nn.Conv2d(32, 64, 2, stride=2)
        self.second = nn.Sequential(nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))

    def forward(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> features (B, 64)."""
        x = self.start(images)
        x = self.down(x + self.first(x))
        return (x + self.second(x)).relu().mean((2, 3))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--out", default="runs/own-backbone")
    arguments = parser.parse_args()
    name = f"{__file__}:Residual"
    run = aggmatch.start(
        aggmatch.resolve({"data.name": "digits", "model.name": name, "train.steps": arguments.steps}), arguments.out
    )
    for record in run.train():
        print(f"step {record['step']}: loss {record['loss']:.3f}")

    # A run folder that names code opens only if you name the code as well.
    model = aggmatch.TrainedModel.load(arguments.out, allow=[name])
    print(f"test accuracy {model.evaluate(run.data).accuracy:.1f} %")
