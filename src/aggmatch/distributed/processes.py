"""The processes of one run: torchrun starts them, and each holds a copy of the whole state.

All processes draw the same batches. A network computes its outputs for a share of the rows on each process and gathers
them (`models.network`), so that methods see whole batches. Gradients are averaged once per step (docs/distributed.md).
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor

from aggmatch.devices import choose_device
from aggmatch.distributed.heartbeat import BEAT, BEGINNING, PATIENCE, Heartbeat
from aggmatch.errors import AggMatchError
from aggmatch.validate import InvalidValue

VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
"""What torchrun sets in the environment of every process."""
POLL = 0.02
"""Seconds between two checks of the store while a process waits for another one."""
LONGEST = timedelta(hours=2)
"""Longest wait for another process in an operation, such as while process 0 saves; stopped ones are noticed earlier."""


class Processes:
    """The processes of a run; this one has number `rank` of `world`. Without arguments there is only this one.

    rank, world: as torchrun counts. local: number of this process on its machine, which is that of its GPU.
    heartbeat, store: of connected processes. Every process must make the same calls in the same order.

    Example: `Processes().first` is True.
    """

    def __init__(
        self, rank: int = 0, world: int = 1, local: int = 0, heartbeat: Heartbeat | None = None, store: Any = None
    ) -> None:
        self.rank, self.world, self.local = rank, world, local
        self.heartbeat, self.store = heartbeat, store
        self.meetings = 0

    def __deepcopy__(self, _: object) -> Self:
        """A copy of a network belongs to the same processes."""
        return self

    @property
    def connected(self) -> bool:
        """Whether torchrun started this process; it may be the only one."""
        return self.store is not None

    @property
    def divides(self) -> bool:
        """Whether batches are divided among several processes."""
        return self.world > 1

    @property
    def first(self) -> bool:
        """Whether this is process 0, the only one that writes files and prints."""
        return self.rank == 0

    def device(self, name: str) -> torch.device:
        """Return the device called `name` in the settings; with several processes, each has its own GPU."""
        if not self.connected or name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
            return choose_device(name)
        if name not in ("auto", "cuda"):
            raise InvalidValue("runtime.device", f"must be auto, cpu or cuda under torchrun, got '{name}'")
        if 0 < (count := torch.cuda.device_count()) <= self.local:
            raise AggMatchError(f"torchrun starts more processes than this machine has GPUs. Start at most {count}.")
        return choose_device(f"cuda:{self.local}")

    def check_divisible(self, key: str, count: int) -> None:
        """Raise `InvalidValue` if `count` images of a batch cannot be divided among the processes."""
        if count % self.world:
            problem = f"must give batches that {self.world} processes can share equally, got {count} images"
            raise InvalidValue(key, problem)

    # Tensors ------------------------------------------------------------------------------------------------------

    def gather(self, part: Tensor) -> Tensor:
        """Return the tensors of all processes, stacked by their number: (...) → (world, ...). Without gradients."""
        whole = part.new_empty(self.world, *part.shape)
        gather_flat = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # its old name
        self.call(gather_flat, whole.view(-1), part.contiguous().view(-1))
        return whole

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors of one type by their means over the processes, with one operation for all of them."""
        # As they lie in memory, which is dense and the same on all processes: no copy for another layout.
        flat = torch.cat([tensor.as_strided((tensor.numel(),), (1,)) for tensor in tensors])
        self.call(dist.all_reduce, flat)
        flat.div_(self.world)
        parts = flat.split([tensor.numel() for tensor in tensors])
        views = [part.as_strided(tensor.shape, tensor.stride()) for part, tensor in zip(parts, tensors, strict=True)]
        torch._foreach_copy_(list(tensors), views)

    def add_up(self, tensor: Tensor) -> Tensor:
        """Return the sum over the processes, in the memory of the tensor."""
        self.call(dist.all_reduce, tensor)
        return tensor

    def largest(self, number: int) -> int:
        """Return the largest of the numbers that the processes have; waits on the host for all of them."""
        if not self.connected:
            return number
        tensor = torch.tensor(number)  # on the CPU: no device waits
        self.call(dist.all_reduce, tensor, dist.ReduceOp.MAX)
        return int(tensor)

    def call(self, operation: Callable[..., Any], *values: Any) -> Any:
        """Return what an operation of all processes does; if it fails, raise an error that names who has stopped."""
        try:
            return operation(*values)
        except RuntimeError:
            assert self.heartbeat, "only connected processes communicate"
            self.heartbeat.find_stopped()
            raise

    # Host ---------------------------------------------------------------------------------------------------------

    def share(self, value: Any) -> Any:
        """Return the value that process 0 has, which JSON must be able to hold."""
        if not self.connected:
            return value
        self.meetings += 1
        key = f"meeting/{self.meetings}"
        if self.first:
            self.call(self.store.set, key, json.dumps(value))
            return value
        assert self.heartbeat, "connected processes have a heartbeat"
        while not self.call(self.store.check, [key]):
            self.heartbeat.check()
            time.sleep(POLL)
        return json.loads(self.call(self.store.get, key))

    @contextmanager
    def first_alone(self) -> Iterator[None]:
        """Process 0 runs the block first, then the others: they find what it has downloaded or cached."""
        if not self.first:
            self.share(None)
        yield
        if self.first:
            self.share(None)

    def check_same(self, name: str, value: int) -> None:
        """Raise an `AggMatchError` if the processes do not all have the same number."""
        least, most = -self.largest(-value), self.largest(value)
        if least != most:
            raise AggMatchError(
                f"The processes of the run do not agree on {name}: {least} and {most}. The folder of the run must be "
                f"on a disk that all machines share, and all processes need the same command."
            )


@contextmanager
def joined() -> Iterator[Processes]:
    """Yield the processes that torchrun started together with this one; without torchrun, this one alone.

    If the block fails, the other processes end too, with a message that names this one.

    Example: `with joined() as processes: run = start(settings, out, processes=processes)`.
    """
    if not under_torchrun():
        yield Processes()
        return
    rank, world, local = (int(os.environ[name]) for name in VARIABLES[:3])
    own = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    holder = f"{f'Process 0 of {world}' if own else 'torchrun'}, on {os.environ['MASTER_ADDR']},"
    store = connect(holds=own and rank == 0)
    heartbeat = Heartbeat(connect(), rank, world, holder)
    heartbeat.start()  # before the group begins, which waits for all processes
    processes = Processes(rank, world, local, heartbeat, connect())
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=LONGEST)
        yield processes
    except BaseException as error:
        heartbeat.close(reason(error))
        if processes.first and world > 1:
            time.sleep(2 * BEAT)  # it may hold the store, where the others read the reason
        raise
    heartbeat.close()
    leave(processes)


def under_torchrun() -> bool:
    """Whether torchrun, or something like it, started this process."""
    return all(name in os.environ for name in VARIABLES)


def connect(*, holds: bool = False) -> Any:
    """Return a connection to the store of the processes. A restart by torchrun has entries of its own.

    holds: whether this process is to hold the store, if torchrun does not.
    """
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined] # a build of torch may lack them

    host, port, seconds = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), timedelta(seconds=BEGINNING)
    try:
        store = TCPStore(host, port, is_master=holds, timeout=seconds, wait_for_workers=False)
    except RuntimeError as error:
        problem = str(error).splitlines()[0].rstrip(".")
        raise AggMatchError(f"Cannot connect to the other processes through {host}, port {port}: {problem}.") from None
    return PrefixStore(f"aggmatch/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)


def reason(error: BaseException) -> str:
    """Return why a process ends, in a sentence."""
    return str(error) if isinstance(error, AggMatchError) else f"{type(error).__name__}."


def leave(processes: Processes) -> None:
    """End the connection. Process 0 goes last: it may hold the store."""
    deadline = time.monotonic() + PATIENCE
    with suppress(RuntimeError):  # what held the store is gone, and the run is finished
        processes.store.add("left", 1)
        while processes.first and processes.store.add("left", 0) < processes.world and time.monotonic() < deadline:
            time.sleep(POLL)
    dist.destroy_process_group()
