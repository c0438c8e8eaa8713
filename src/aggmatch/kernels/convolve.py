"""3×3 convolutions of few channels, whose plain products would leave most of a matrix unit idle.

Each row of a matrix product computes two neighbouring pixels of the output. The four input pixels around such a pair
are 4K adjacent values in memory. Times a banded matrix (4K, 2N), they give what one row of taps adds to the 2N values
of the pair. A program loops over the rows of some images: it loads each row of pixels once and adds to the output rows
above, at and below it.

Tensors are (images, channels, H, W) with channels last. Suffixes: K channels in, padded to a power of 2; N channels
out; R rows of a tile, each a pair of pixels; P programs that each sum a part.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from aggmatch.kernels import shared_memory
from aggmatch.kernels.finish import Moments, finish_moments
from aggmatch.kernels.norm import check_layout

ROWS = 64
"""Pairs of pixels in a tile, the size of one product of the matrix units."""
CHANNELS = (16, 32)
"""Allowed channels in and out: powers of 2, so small that three banded matrices fit into shared memory."""
IMAGE_CHANNELS = 4
"""Largest number of channels of images, which may be any: their gradient is never needed."""
LEAST = 32
"""With fewer programs most of a GPU would be idle: for 64 images of 32 × 32, which are 16, cuDNN is faster."""
WARPS = 4
"""Warps of a program, which share one product of the matrix units."""
STAGES = 3
"""Rows of pixels in flight: the program computes with one while it loads the others."""
THREE_STAGES = 120 * 1024
"""Shared memory in bytes that three stages need at most; two fit everywhere."""


@triton.jit
def places(
    images, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, K: tl.constexpr, N: tl.constexpr, R: tl.constexpr
):
    """Return the offsets of a tile's values in the first rows of its images, and whether they exist.

    First for the four pixels around each pair, (R, 4K), then for the pair itself, (R, 2N). A tile holds the pairs of a
    row of one image, then those of the next image.
    """
    PAIRS: tl.constexpr = (W + 1) // 2
    row = tl.arange(0, R)
    turn, column = row // PAIRS, (row % PAIRS * 2)[:, None]
    image = tl.program_id(0) * (R // PAIRS) + turn
    exists = ((turn < R // PAIRS) & (image < images))[:, None]
    first = (image * (H * W))[:, None]
    j, n = tl.arange(0, 4 * K)[None, :], tl.arange(0, 2 * N)[None, :]
    neighbour = column + j // K - 1
    seen = exists & (neighbour >= 0) & (neighbour < W) & (j % K < C)
    own = exists & (column + n // N < W)
    return (first + neighbour) * C + j % K, seen, (first + column) * N + n, own


@triton.jit
def band(kernel, ky, C: tl.constexpr, K: tl.constexpr, N: tl.constexpr, BACK: tl.constexpr):
    """Return the row ky of a kernel's taps as a matrix from four pixels to the middle two, (4K, 2N).

    BACK: for the convolution of the backward pass, whose taps are in reverse order.
    """
    j, n = tl.arange(0, 4 * K)[:, None], tl.arange(0, 2 * N)[None, :]
    kx = j // K - n // N
    if BACK:
        place = (j % K) * 9 * N + (8 - 3 * ky - kx) * N + n % N
    else:
        place = (n % N) * 9 * C + (3 * ky + kx) * C + j % K
    return tl.load(kernel + place, mask=(kx >= 0) & (kx < 3) & (j % K < C), other=0.0)


@triton.jit
def convolve_kernel(
    x,
    kernel,
    residual,
    out,
    part_2P1N,
    images,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    BACK: tl.constexpr,
    ADD: tl.constexpr,
    MEASURE: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Compute v = x convolved (+ residual), and Σv and Σv² of each channel over this program's images."""
    program, programs = tl.program_id(0), tl.num_programs(0)
    from_, seen, to, own = places(images, H, W, C, K, N, R)
    top = band(kernel, 0, C, K, N, BACK)
    middle = band(kernel, 1, C, K, N, BACK)
    bottom = band(kernel, 2, C, K, N, BACK)
    # Sums that wait for a row are stored negated, and subtracted. If they were added, they would become the products'
    # accumulators across iterations, and the compiler would run all products one after the other.
    above = tl.zeros((R, 2 * N), tl.float32)
    here = tl.zeros((R, 2 * N), tl.float32)
    first = tl.zeros((R // 16, 8, 2 * N), tl.float32)
    second = tl.zeros((R // 16, 8, 2 * N), tl.float32)
    for h in tl.range(H + 1, num_stages=STAGES):
        pixels = tl.load(x + from_ + h * W * C, mask=seen & (h < H), other=0.0)
        value = tl.dot(pixels, bottom, input_precision="ieee") - above
        above = here - tl.dot(pixels, middle, input_precision="ieee")
        here = -tl.dot(pixels, top, input_precision="ieee")
        done = own & (h > 0)
        if ADD:
            value += tl.load(residual + to + (h - 1) * W * N, mask=done, other=0.0).to(tl.float32)
        if MEASURE:
            value = tl.where(done, value, 0.0)
            first += tl.sum(tl.reshape(value, (R // 16, 2, 8, 2 * N)), 1)
            second += tl.sum(tl.reshape(value * value, (R // 16, 2, 8, 2 * N)), 1)
        tl.store(out + to + (h - 1) * W * N, value.to(out.dtype.element_ty), mask=done)
    if MEASURE:
        channel = tl.arange(0, N)
        part = part_2P1N + program * N + channel
        tl.store(part, tl.sum(tl.reshape(tl.sum(tl.sum(first, 0), 0), (2, N)), 0))
        tl.store(part + programs * N, tl.sum(tl.reshape(tl.sum(tl.sum(second, 0), 0), (2, N)), 0))
        tl.store(part_2P1N + 2 * programs * N + channel, tl.zeros((N,), tl.float32))


@triton.jit
def kernel_gradient_kernel(
    x,
    gradient,
    part_P3KN,
    images,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    R: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sum four pixels times the gradients of their pair over this program's images: one band per row of taps."""
    from_, seen, to, own = places(images, H, W, C, K, N, R)
    top = tl.zeros((4 * K, 2 * N), tl.float32)
    middle = tl.zeros((4 * K, 2 * N), tl.float32)
    bottom = tl.zeros((4 * K, 2 * N), tl.float32)
    for h in tl.range(H, num_stages=STAGES):
        pixels = tl.trans(tl.load(x + from_ + h * W * C, mask=seen, other=0.0))
        below = tl.load(gradient + to + (h + 1) * W * N, mask=own & (h < H - 1), other=0.0)
        here = tl.load(gradient + to + h * W * N, mask=own, other=0.0)
        above = tl.load(gradient + to + (h - 1) * W * N, mask=own & (h > 0), other=0.0)
        top = tl.dot(pixels, below, top, input_precision="ieee")
        middle = tl.dot(pixels, here, middle, input_precision="ieee")
        bottom = tl.dot(pixels, above, bottom, input_precision="ieee")
    SIZE: tl.constexpr = 8 * K * N
    place = tl.arange(0, 4 * K)[:, None] * (2 * N) + tl.arange(0, 2 * N)[None, :]
    part = part_P3KN + tl.program_id(0) * 3 * SIZE + place
    tl.store(part, top)
    tl.store(part + SIZE, middle)
    tl.store(part + 2 * SIZE, bottom)


@triton.jit
def finish_kernel_gradient_kernel(
    part_P3KN, out, P: tl.constexpr, C: tl.constexpr, K: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr
):
    """Compute the gradient of one tap and channel in, for all channels out: sum its two places in the band."""
    tap, channel = tl.program_id(0), tl.program_id(1)
    row = (tap // 3 * 4 + tap % 3) * K + channel
    n = tl.arange(0, N)
    total = tl.zeros((PARTS, N), tl.float32)
    for start in range(0, P, PARTS):
        p = start + tl.arange(0, PARTS)[:, None]
        part = part_P3KN + p * (24 * K * N) + row * 2 * N + n[None, :]
        total += tl.load(part, mask=p < P, other=0.0)
        total += tl.load(part + K * 2 * N + N, mask=p < P, other=0.0)
    tl.store(out + n * 9 * C + tap * C + channel, tl.sum(total, 0))


def is_narrow(layer: nn.Conv2d, x: Tensor) -> bool:
    """Return whether these kernels can compute a layer, and do it faster than cuDNN."""
    return (
        layer.kernel_size == (3, 3)
        and layer.stride == (1, 1)
        and layer.padding == (1, 1)
        and (layer.in_channels <= IMAGE_CHANNELS or layer.in_channels in CHANNELS)
        and layer.out_channels in CHANNELS
        and x.element_size() == 2
        and x.shape[3] <= 2 * ROWS
        and programs_of(x) >= LEAST
        and x.numel() // layer.in_channels * max(layer.in_channels, layer.out_channels) < 2**31
    )


def convolve_and_measure(
    x: Tensor, kernel: Tensor, residual: Tensor | None, norm: nn.BatchNorm2d
) -> tuple[Tensor, Moments]:
    """Return x convolved + residual, and its moments by channel; update the running statistics of `norm`.

    x: (B, C, H, W); kernel: (N, C, 3, 3); residual: (B, N, H, W); all channels last. Moments are summed about 0: the
    rounding of values in 16 bits is larger than the cancellation error.
    """
    part_2P1N = torch.empty(2 * programs_of(x) + 1, kernel.shape[0], device=x.device)
    out = launch(x, kernel, residual, part_2P1N)
    return out, finish_moments(part_2P1N, out.numel() // out.shape[1], norm)


def convolve_back(gradient: Tensor, kernel: Tensor) -> Tensor:
    """Return the gradient of a convolution's input, (B, C, H, W), given that of its output, (B, N, H, W)."""
    return launch(gradient, kernel, None, None, back=True)


def launch(
    x: Tensor, kernel: Tensor, residual: Tensor | None, part_2P1N: Tensor | None, *, back: bool = False
) -> Tensor:
    """Return x convolved + residual; write the partial sums if there is a tensor for them."""
    channels = kernel.shape[1] if back else kernel.shape[0]
    shape, programs = tile_shape(x)
    check_layout(kernel, x if residual is None else residual)
    size = len(x), channels, *x.shape[2:]
    out = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    convolve_kernel[(programs,)](
        x,
        kernel,
        x if residual is None else residual,
        out,
        out if part_2P1N is None else part_2P1N,
        len(x),
        **shape,
        N=channels,
        BACK=back,
        ADD=residual is not None,
        MEASURE=part_2P1N is not None,
    )
    return out


def kernel_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """Return the gradient of a kernel, (N, C, 3, 3) float32, given x (B, C, H, W) and that of the output."""
    shape, programs = tile_shape(x)
    check_layout(gradient)
    outputs, inputs = gradient.shape[1], x.shape[1]
    part_P3KN = torch.empty(programs, 3, 4 * shape["K"], 2 * outputs, device=x.device)
    kernel_gradient_kernel[(programs,)](x, gradient, part_P3KN, len(x), **shape, N=outputs)
    out = torch.empty(outputs, inputs, 3, 3, device=x.device, memory_format=torch.channels_last)
    finish_kernel_gradient_kernel[(9, inputs)](
        part_P3KN, out, P=programs, C=inputs, K=shape["K"], N=outputs, PARTS=min(64, triton.next_power_of_2(programs))
    )
    return out


def tile_shape(x: Tensor) -> tuple[dict[str, int], int]:
    """Return the constants of a launch over a batch, and its number of programs."""
    check_layout(x)
    channels, height, width = x.shape[1:]
    padded = max(IMAGE_CHANNELS, triton.next_power_of_2(channels))
    stages = STAGES if shared_memory(x.device) >= THREE_STAGES else 2
    shape = {"H": height, "W": width, "C": channels, "K": padded, "R": ROWS, "STAGES": stages, "num_warps": WARPS}
    return shape, programs_of(x)


def programs_of(x: Tensor) -> int:
    """Return the number of programs for a batch: each takes as many images as have one row of pairs in a tile."""
    return triton.cdiv(len(x), ROWS // triton.cdiv(x.shape[3], 2))
