"""Whether the kernels can be used at all."""

import sys

import pytest

from aggmatch.kernels import triton_works


def test_with_triton_nothing_is_said():
    assert triton_works.__wrapped__()


def test_a_missing_triton_is_said_in_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.warns(UserWarning, match="without fused kernels, and so slower: .*triton"):
        assert not triton_works.__wrapped__()
