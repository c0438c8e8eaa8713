"""Whether the kernels can run, and on which GPUs."""

import sys

import pytest
import torch
from tests.interpreter import outside

from aggmatch.kernels import shared_memory, triton_works

LIMITS = {86: 99 * 1024, 90: 227 * 1024}
"""Compute capability → bytes of shared memory: of most GPUs since 2020, and of an H100."""
STRINGS = {
    "images": "i32",
    "inverse_temperature": "fp32",
    "class_weight": "fp32",
    "slot_MS": "*i64",
    "choice_BM": "*i64",
}
SHORT = ("x", "kernel", "residual", "out", "gradient", "query_BD", "feature_QD")


def test_with_triton_there_is_no_warning():
    assert triton_works.__wrapped__()


def test_a_missing_triton_gives_a_warning(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(UserWarning, match="fused kernels.*triton"):
        assert not triton_works.__wrapped__()


def test_a_gpu_without_bfloat16_gives_a_warning(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.warns(UserWarning, match="fused kernels.*Tesla T4"):
        assert not triton_works.__wrapped__()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert triton_works.__wrapped__()


def test_the_interpreter_has_no_limit_of_shared_memory():
    assert shared_memory(torch.device("cpu")) > max(LIMITS.values())


@outside
@pytest.mark.parametrize("capability", LIMITS)
def test_the_shared_memory_of_a_program_fits_the_gpu(capability, monkeypatch):
    from aggmatch.kernels import aggregate, convolve

    for module in (aggregate, convolve):
        monkeypatch.setattr(module, "shared_memory", lambda device: LIMITS[capability])
    cpu = torch.device("cpu")
    x = torch.empty(512, 32, 32, 32, dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    shape, _ = convolve.tile_shape(x)
    shape["N"] = 32
    classes = aggregate.most_classes(cpu)
    tiles = aggregate.tile_sizes(448, 512, classes, 64, 64)
    needed = {
        "output": share(capability, convolve.convolve_kernel, shape | {"BACK": False, "ADD": True, "MEASURE": True}),
        "taps": share(capability, convolve.kernel_gradient_kernel, shape),
        "aggregation": share(
            capability,
            aggregate.aggregate_kernel,
            {"B": 448, "P": 448, "M": 64, "S": 64, "D": 512, "Y": classes, "GROUPS": tiles.groups}
            | {"BLOCK_B": tiles.queries, "BLOCK_S": tiles.slots, "BLOCK_D": tiles.features, "BLOCK_Y": tiles.classes}
            | {"FEATURE_TERM": True, "CLASS_TERM": 1, "UNROLLED": 4, "FAST": True, "LOG_2": aggregate.LOG_2}
            | {"num_warps": tiles.warps},
        ),
    }
    assert max(needed.values()) <= LIMITS[capability], needed
    assert min(needed.values()) > 0


def share(capability, kernel, constants):
    """Bytes of shared memory of a kernel, compiled for a GPU that this machine need not have."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    options = {"num_warps": constants["num_warps"]}
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    kinds = {name: "*bf16" if name in SHORT else STRINGS.get(name, "*fp32") for name in kernel.arg_names}
    places = {name: (place,) for place, name in enumerate(kernel.arg_names)}
    source = ASTSource(
        fn=kernel,
        signature=kinds | dict.fromkeys(constants, "constexpr"),
        constexprs={places[name]: value for name, value in constants.items()},
        attrs={
            places[name]: [["tt.divisibility", 16]]
            for name, kind in kinds.items()
            if kind.startswith("*") and name not in constants
        },
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared
