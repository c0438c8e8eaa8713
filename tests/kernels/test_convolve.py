"""Convolutions of few channels against torch's: in Triton's interpreter on a CPU, compiled on a GPU."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.interpreter import SHORT, check_in_interpreter, device, on_gpu, outside, runnable
from torch.nn.grad import conv2d_weight

pytest.importorskip("triton")

SHAPES = {
    "images": st.integers(1, 5),
    "channels": st.sampled_from([1, 3, 8, 16, 32]),
    "outputs": st.sampled_from([16, 32]),
    "height": st.integers(1, 5),
    "width": st.integers(1, 9),
}

pytestmark = pytest.mark.usefixtures("exact_convolutions")
EXAMPLES = settings(max_examples=5 if on_gpu else 25)
"""Fewer on a GPU, where each shape must be compiled."""
DTYPE = SHORT if on_gpu else torch.float32
ROUNDING = torch.finfo(DTYPE).eps


def draw(*shape: int) -> torch.Tensor:
    values = torch.randn(*shape, device=device).to(DTYPE)
    return values.contiguous(memory_format=torch.channels_last)


def close(found: torch.Tensor, expected: torch.Tensor, rounding: float = ROUNDING) -> None:
    """Equal up to the order of float32 sums and one rounding of the result."""
    torch.testing.assert_close(found.float(), expected, atol=2e-5 * float(expected.abs().max()), rtol=rounding + 1e-5)


@runnable
@given(**SHAPES, residual=st.booleans())
@EXAMPLES
def test_output_and_moments_are_those_of_convolution_and_batch_norm(images, channels, outputs, height, width, residual):
    from aggmatch.kernels.convolve import convolve_and_measure

    torch.manual_seed(0)
    x, kernel = draw(images, channels, height, width), draw(outputs, channels, 3, 3)
    other = draw(images, outputs, height, width) if residual else None
    norm = torch.nn.BatchNorm2d(outputs).to(device)
    twin = torch.nn.BatchNorm2d(outputs).to(device)
    found, moments = convolve_and_measure(x, kernel, other, norm)
    expected = F.conv2d(x.float(), kernel.float(), padding=1) + (0 if other is None else other.float())
    close(found, expected)
    assert found.dtype == DTYPE
    assert found.is_contiguous(memory_format=torch.channels_last)
    variance, mean = torch.var_mean(expected, (0, 2, 3), unbiased=False)
    torch.testing.assert_close(moments.mean, mean, atol=1e-4, rtol=1e-4)
    found_variance = moments.inverse_deviation**-2 - norm.eps  # from sums about 0, so E v² cancels
    assert ((found_variance - variance).abs() <= 1e-5 * (variance + mean**2) + 1e-6).all()
    if images * height * width > 1:  # torch raises for moments of a single value
        twin(expected)
        torch.testing.assert_close(norm.running_mean, twin.running_mean, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(norm.running_var, twin.running_var, atol=1e-4, rtol=1e-4)


@runnable
@given(**SHAPES)
@EXAMPLES
def test_gradients_are_those_of_autograd(images, channels, outputs, height, width):
    from aggmatch.kernels.convolve import convolve_back, kernel_gradient

    torch.manual_seed(0)
    x, kernel = draw(images, channels, height, width), draw(outputs, channels, 3, 3)
    gradient = draw(images, outputs, height, width)
    leaf, weight = x.float().requires_grad_(), kernel.float().requires_grad_()
    F.conv2d(leaf, weight, padding=1).backward(gradient.float())
    assert leaf.grad is not None
    assert weight.grad is not None
    close(kernel_gradient(x, gradient), weight.grad, rounding=0)
    if channels >= 16:  # gradients of images are never needed
        close(convolve_back(gradient, kernel), leaf.grad)


@runnable
def test_the_sums_include_the_images_of_all_programs():
    from aggmatch.kernels.convolve import convolve_and_measure, kernel_gradient

    torch.manual_seed(0)
    x, kernel, gradient = draw(9, 16, 3, 64), draw(16, 16, 3, 3), draw(9, 16, 3, 64)  # two images a program
    norm = torch.nn.BatchNorm2d(16).to(device)
    found, moments = convolve_and_measure(x, kernel, None, norm)
    expected = F.conv2d(x.float(), kernel.float(), padding=1)
    close(found, expected)
    torch.testing.assert_close(moments.mean, expected.mean((0, 2, 3)), atol=1e-4, rtol=1e-4)
    weight = conv2d_weight(x.float(), (16, 16, 3, 3), gradient.float(), padding=1)
    close(kernel_gradient(x, gradient), weight, rounding=0)


@runnable
def test_tensors_in_another_layout_raise():
    from aggmatch.kernels.convolve import convolve_back, kernel_gradient

    x, kernel = draw(2, 16, 4, 4), draw(16, 16, 3, 3)
    for attempt in (
        lambda: convolve_back(x.contiguous(), kernel),
        lambda: convolve_back(x, kernel.contiguous()),
        lambda: kernel_gradient(x, x.contiguous()),
    ):
        with pytest.raises(AssertionError, match="channels last"):
            attempt()


def layer(**changes: object) -> torch.nn.Conv2d:
    options: dict[str, object] = {"in_channels": 32, "out_channels": 32, "kernel_size": 3, "padding": 1}
    return torch.nn.Conv2d(**(options | changes), device="meta")  # type: ignore[arg-type]


def batch(width: int = 32, images: int = 128) -> torch.Tensor:
    return torch.empty(images, 32, 32, width, dtype=torch.bfloat16, device="meta")


def test_layers_that_these_kernels_compute():
    from aggmatch.kernels.convolve import is_narrow

    assert is_narrow(layer(), batch())
    assert is_narrow(layer(in_channels=3, out_channels=16), batch())
    assert is_narrow(layer(), batch(width=128, images=32))


@pytest.mark.parametrize(
    ("changes", "x"),
    [
        ({"stride": 2}, batch()),
        ({"kernel_size": 1, "padding": 0}, batch()),
        ({"padding": 0}, batch()),
        ({"in_channels": 64}, batch()),
        ({"in_channels": 24}, batch()),
        ({"out_channels": 64}, batch()),
        ({"out_channels": 24}, batch()),
        ({}, batch().float()),
        ({}, batch(width=130)),
        ({}, batch(images=124)),
        ({}, batch(images=2**16)),
        ({"in_channels": 16}, batch(images=2**16 - 1)),
    ],
)
def test_layers_that_cudnn_computes(changes, x):
    from aggmatch.kernels.convolve import is_narrow

    assert not is_narrow(layer(**changes), x)


@outside
def test_the_kernels_in_the_interpreter():
    check_in_interpreter(__file__, 17)
