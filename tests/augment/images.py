"""Images for the tests of views, and conversion to and from Pillow."""

from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from torch import Tensor

SIDES = (8, 32, 33, 96)
BLEND = ("brightness", "color", "contrast", "sharpness")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def some_images(side: int, channels: int) -> Tensor:
    """Noise, noise of low contrast, a ramp, few grey levels, mostly one value, and one value only."""
    noise = torch.rand(5, channels, side, side, generator=seeded(side))
    low = 90 + 40 * noise[1]
    ramp = torch.linspace(10, 240, side).expand(channels, side, side) + 10 * noise[2]
    levels = 60 * (4 * noise[3]).floor()
    spots = 200 * (noise[4] > 0.95)
    flat = torch.full((channels, side, side), 77.0)
    return torch.stack((256 * noise[0], low, ramp, levels, spots, flat)).to(torch.uint8)


def distinct(images: Tensor) -> int:
    return len({image.numpy().tobytes() for image in images})


def check_replays(make: Callable[[torch.Generator], Tensor]) -> None:
    """A captured graph that makes views makes new ones on every replay: those of calls without a graph."""
    generator = torch.Generator("cuda").manual_seed(0)
    make(generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        out = make(generator)
    generator.manual_seed(1)
    replays = []
    for _ in range(2):
        graph.replay()
        replays.append(out.clone())
    generator.manual_seed(1)
    assert torch.equal(replays[0], make(generator))
    assert torch.equal(replays[1], make(generator))
    assert not torch.equal(replays[0], replays[1])


def to_pillow(image: Tensor) -> Image.Image:
    array = image.permute(1, 2, 0).numpy()
    return Image.fromarray(array[..., 0] if array.shape[2] == 1 else array)


def from_pillow(image: Image.Image) -> Tensor:
    array = np.array(image)
    return torch.from_numpy(array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy())
