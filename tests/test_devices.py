"""What it ran on, in words."""

import pytest
import torch

from aggmatch.devices import hardware


@pytest.mark.parametrize(("count", "words"), [(1, "CPU, 1 thread"), (2, "CPU, 2 threads")])
def test_threads_are_counted_in_plain_english(monkeypatch, count, words):
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert hardware(torch.device("cpu")).endswith(words)
