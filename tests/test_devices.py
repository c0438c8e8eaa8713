import ctypes
import os
import platform
import resource

import pytest
import torch
from torch import nn

import aggmatch
from aggmatch import devices
from aggmatch.devices import (
    SMALL,
    choose_device,
    choose_threads,
    computing_on,
    free_memory,
    hardware,
    provenance,
    return_freed_memory,
    search_pays,
)
from aggmatch.errors import AggMatchError

CPU = torch.device("cpu")
GLIBC = hasattr(ctypes.CDLL(None), "mallopt")
LARGE = 2**26


@pytest.mark.parametrize("name", ["quantum", "cuda:", "cpu:0", ""])
def test_an_unknown_device_is_an_error_that_names_the_setting(name):
    with pytest.raises(AggMatchError, match=r"runtime\.device"):
        choose_device(name)


@pytest.mark.parametrize(("available", "chosen"), [(False, "cpu"), (True, "cuda:1")])
def test_auto_is_the_best_device(monkeypatch, available, chosen):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert choose_device("auto") == torch.device(chosen)


def test_a_device_that_the_machine_does_not_have_is_an_error(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(AggMatchError, match=r"runtime\.device is 'cuda:1'.*Try cpu"):
        choose_device("cuda:1")


@pytest.mark.parametrize(
    ("wanted", "weights", "threads"), [(0, SMALL - 1, 1), (0, SMALL, 5), (3, SMALL - 1, 3), (2, SMALL, 2)]
)
def test_small_networks_get_one_thread_unless_the_settings_say_otherwise(monkeypatch, wanted, weights, threads):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    with torch.device("meta"):
        network = nn.Linear(weights, 1, bias=False)
    assert choose_threads(wanted, network) == threads


def use_and_free_a_large_block() -> int:
    """Return how many pages the system had to provide for it."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.zeros(LARGE, dtype=torch.uint8).add_(1)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


@pytest.mark.skipif(not GLIBC, reason="only glibc returns large blocks at once")
def test_memory_that_cpu_work_frees_is_used_again_until_it_is_returned():
    with computing_on(CPU):
        again = min(use_and_free_a_large_block() for _ in range(5))
        return_freed_memory()
        after_return = use_and_free_a_large_block()
    pages = LARGE // resource.getpagesize()
    assert again < pages / 10
    assert after_return > pages / 2


def test_a_c_library_without_these_settings_is_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    devices.keep_freed_memory.__wrapped__()
    return_freed_memory()


@pytest.mark.parametrize("threads", [0, 1, 2, 3])
def test_threads_are_set_within_and_restored(threads):
    before = torch.get_num_threads()
    with computing_on(CPU, threads):
        assert torch.get_num_threads() == (threads or before)
    with pytest.raises(RuntimeError, match="within"), computing_on(CPU, threads):
        raise RuntimeError("within")
    assert torch.get_num_threads() == before


def test_cudnn_and_the_current_device_are_set_within_and_restored(monkeypatch):
    entered = []

    class Device:
        def __init__(self, device):
            self.device = device

        def __enter__(self):
            entered.append(self.device)

        def __exit__(self, *_):
            entered.append(None)

    monkeypatch.setattr(torch.cuda, "device", Device)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    device = torch.device("cuda", 1)
    with computing_on(device):
        assert torch.backends.cudnn.benchmark
        assert entered == [device]
    with computing_on(device, search=False):
        assert not torch.backends.cudnn.benchmark
    with pytest.raises(RuntimeError, match="within"), computing_on(device):
        raise RuntimeError("within")
    assert entered == [device, None] * 3
    assert not torch.backends.cudnn.benchmark


@pytest.mark.parametrize(("groups", "pays"), [(1, True), (4, False)])
def test_cudnn_does_not_search_kernels_for_depthwise_layers(groups, pays):
    assert search_pays(nn.Sequential(nn.Conv2d(4, 4, 3, groups=groups))) == pays


@pytest.mark.parametrize(("count", "words"), [(1, "CPU, 1 thread"), (2, "CPU, 2 threads")])
def test_the_hardware_of_a_cpu_names_the_number_of_threads(monkeypatch, count, words):
    assert hardware(CPU, count).endswith(words)
    monkeypatch.setattr(torch, "get_num_threads", lambda: count)
    assert hardware(CPU).endswith(words)


def test_provenance_holds_hardware_and_versions():
    assert provenance(CPU, 2) == {
        "hardware": hardware(CPU, 2),
        "versions": {"aggmatch": aggmatch.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }


def test_free_memory_is_some_of_the_memory_of_the_machine():
    assert 2**20 < free_memory(CPU) <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_free_memory_is_at_most_what_the_container_allows(monkeypatch):
    monkeypatch.setattr(devices, "container_memory", lambda: iter([3000, 1000]))
    assert free_memory(CPU) == 1000


def test_the_limit_of_a_container_counts_cached_files_as_free(monkeypatch, tmp_path):
    group = tmp_path / "sys/fs/cgroup/job/step"
    group.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    for file, content in {
        "proc/cgroup": "4:memory:/old\n0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": "1000\n",
        "sys/fs/cgroup/job/memory.current": "700\n",
        "sys/fs/cgroup/job/memory.stat": "anon 500\nfile 200\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
    }.items():
        (tmp_path / file).write_text(content)
    monkeypatch.setattr(devices, "CGROUPS", tmp_path / "sys/fs/cgroup")
    monkeypatch.setattr(devices, "OWN_CGROUPS", tmp_path / "proc/cgroup")
    assert list(devices.container_memory()) == [500]
