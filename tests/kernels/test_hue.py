"""The kernel that turns hues against the plain form, in Triton's interpreter or compiled on a GPU."""

import pytest
import torch
from tests.augment.images import seeded, some_images
from tests.interpreter import check_in_interpreter, device, on_gpu, outside, runnable
from tests.kernels.compiled import compiled, compiles
from torch import Tensor

from aggmatch.augment.crops import recolor, with_hue_turned
from aggmatch.augment.randaugment import kernels_on
from aggmatch.augment.settings import CropSettings

pytest.importorskip("triton")


def every_pixel() -> Tensor:
    """All combinations of 16 grey values per channel, and all of two and three neighbouring ones; (8, 3, 24, 24)."""
    coarse, fine = torch.arange(0, 256, 17), torch.tensor([0, 1, 2, 126, 127, 128, 254, 255])
    pixel = torch.cat([torch.cartesian_prod(level, level, level) for level in (coarse, fine)])
    return pixel.T.reshape(3, 8, 24, 24).transpose(0, 1).to(torch.uint8).contiguous()


@runnable
def test_turned_hues_equal_the_plain_form():
    from aggmatch.kernels.hue import turn_hue

    images = every_pixel()
    for turns in (
        [-0.5, -0.31, -0.1, -1e-4, 0, 1e-4, 0.1, 0.5],
        [1 / 6, -1 / 6, 1 / 3, -1 / 3, 0.25, -0.25, 0.05, 0.0],
    ):
        turn_N = torch.tensor(turns)
        found = turn_hue(images.to(device), turn_N.to(device))
        assert found.dtype == torch.uint8
        assert torch.equal(found.cpu(), with_hue_turned(images, turn_N))


@runnable
@pytest.mark.parametrize("side", [3, 33, 40])
def test_sides_need_not_be_powers_of_two(side):
    from aggmatch.kernels.hue import turn_hue

    images = some_images(side, 3)
    turn_N = torch.rand(len(images), generator=seeded()) - 0.5
    assert torch.equal(turn_hue(images.to(device), turn_N.to(device)).cpu(), with_hue_turned(images, turn_N))


@runnable
@pytest.mark.skipif(on_gpu, reason="draws on a GPU are other draws")
def test_changed_colours_by_kernels_equal_the_plain_form(monkeypatch):
    from aggmatch.kernels import hue, randaugment

    images = some_images(16, 3)
    settings = CropSettings(hue=0.1, grey=0.3, jittered=0.8, solarized=0.3, equalized=0.3)
    expected = recolor(images, settings, seeded(3))
    kernels = {"hue": hue, "randaugment": randaugment}
    for module in ("randaugment", "crops"):
        monkeypatch.setattr(f"aggmatch.augment.{module}.kernels_on", lambda _, name="randaugment": kernels[name])
    assert torch.equal(recolor(images, settings, seeded(3)), expected)


@outside
def test_the_kernel_in_the_interpreter():
    check_in_interpreter(__file__, 6)


def test_the_kernel_runs_on_cuda_devices_only():
    assert kernels_on("cpu", "hue") is None
    kernels = kernels_on("cuda", "hue")
    assert kernels is not None
    assert kernels.__name__ == "aggmatch.kernels.hue"


@compiles
def test_the_kernel_compiles_for_a_gpu_without_fused_arithmetic(tmp_path, monkeypatch):
    from aggmatch.kernels.hue import hue_kernel
    from aggmatch.kernels.randaugment import EXACT

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    types = {"images": "*u8", "out": "*u8", "turn_N": "*fp32"}
    assembly = compiled(hue_kernel, types, {"C": 3, "SIDE": 32, "BLOCK": 1024}, **EXACT)
    assert "div.rn.f32" in assembly
    assert "div.full.f32" not in assembly
