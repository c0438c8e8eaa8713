"""Trains runs on a Ray cluster: each is a task with CPUs and a share of a GPU.

Ray places the tasks and carries their messages. A task is a generator, so a message is one of its values, and Ray lets
it run only a few messages ahead of the reader. What happens to a run whose machine is lost is decided in `dispatch.py`.
"""

import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from aggmatch.errors import AggMatchError
from aggmatch.experiments.engines.dispatch import MachineLost, RemoteTraining
from aggmatch.experiments.engines.worker import Message, Order, train_run
from aggmatch.experiments.planned import Event, PlannedRun
from aggmatch.experiments.progress import show_progress

ADDRESS = re.compile(r"[^/]+:\d+")
AHEAD = 8
"""Messages that a task may be ahead of the reader."""
ANSWER = 10.0
"""Seconds in which a cluster must answer."""


class OnRay:
    """An `Engine` on a Ray cluster.

    address: of the cluster, `local` for one on this machine, or None for the one in the environment variable
    RAY_ADDRESS; without that, for the cluster that runs on this machine, or a new one. at_once: how many runs share a
    GPU. download: whether the machines fetch missing files of the data set.

    Example: `OnRay("10.0.0.1:6379", at_once=2).train(runs, quiet=False)`.
    """

    later = 0

    def __init__(self, address: str | None = None, at_once: int = 1, *, download: bool = False) -> None:
        self.address, self.at_once, self.download = address, at_once, download
        self.stopped_by: int | None = None

    def train(self, runs: Sequence[PlannedRun], *, quiet: bool) -> Iterator[Event]:
        """Train the unfinished runs, show their progress unless `quiet`, and yield those that fail."""
        if all(run.finished for run in runs):
            return
        cluster = RayCluster(self.address, [run for run in runs if not run.finished], self.at_once)
        training = RemoteTraining(runs, cluster, download=self.download)
        try:
            yield from show_progress(training.train(), quiet=quiet)
        finally:
            cluster.close()
        self.stopped_by = training.stopped_by


class RayCluster:
    """A `Cluster` of Ray. Creating the object connects to it.

    address, at_once: see `OnRay`. runs: which devices and how many CPU threads they ask for decides what a task needs.
    """

    def __init__(self, address: str | None, runs: Sequence[PlannedRun], at_once: int) -> None:
        self.ray = ray = import_ray()
        gpu = any(wants_gpu(run) for run in runs)
        self.connected = not ray.is_initialized()
        if self.connected:
            connect(ray, address)
        asked = {run.settings.runtime.device for run in runs}
        gpu = gpu or ("auto" in asked and ray.cluster_resources().get("GPU", 0) > 0)
        self.resources = {
            "num_cpus": max(run.settings.runtime.threads or 1 for run in runs),
            "num_gpus": 1 / at_once if gpu else 0,
        }
        share = f" and {1 / at_once:.3g} GPU" if gpu else ""
        self.needs = f"{self.resources['num_cpus']} CPU{share}"
        here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self.stop_sign = ray.util.queue.Queue(1, actor_options={"num_cpus": 0, "scheduling_strategy": here})
        # A process for each run, so that nothing of one is left in the memory of the next. `dispatch.py` retries.
        self.task = ray.remote(max_calls=1, max_retries=0, num_returns="streaming")(run_task)

    def submit(self, title: str, order: Order, pieces: Iterator[bytes]) -> Any:
        """Hand in a run, with the pieces of the archive of its files, and return its job."""
        stored = [self.ray.put(piece) for piece in pieces]
        task = self.task.options(name=title, _generator_backpressure_num_objects=AHEAD, **self.resources)
        return task.remote(order, stored, self.stop_sign)

    def ready(self, jobs: Sequence[Any], seconds: float) -> Sequence[Any]:
        """Return the jobs that have a message; wait for the first one for at most this time."""
        first, _ = self.ray.wait(jobs, num_returns=1, timeout=seconds)
        return self.ray.wait(jobs, num_returns=len(jobs), timeout=0)[0] if first else []

    def receive(self, job: Any) -> Message:
        """Return the next message of a job that is ready; raise `MachineLost` if none can come."""
        errors = self.ray.exceptions
        try:
            message: Message = self.ray.get(next(job))
        except StopIteration:
            raise MachineLost("it ended early") from None
        except errors.RayTaskError as error:  # in our own code, or in Ray's on the other machine
            return Message("failed", f"{type(error.cause).__name__}: {error.cause}")
        except errors.RayError as error:
            raise MachineLost(str(error).splitlines()[0]) from None
        return message

    def stop(self) -> None:
        """Ask all jobs to save and stop."""
        self.stop_sign.put(True)

    def cancel(self, job: Any) -> None:
        """End a job at once."""
        self.ray.cancel(job, force=True)

    def close(self) -> None:
        """Leave the cluster; one that was started for this command ends."""
        if self.connected:
            self.ray.shutdown()


def run_task(order: Order, pieces: Sequence[Any], stop_sign: Any) -> Iterator[Message]:
    """Train a run in a task of Ray. pieces: references to them. stop_sign: a queue; not empty once all must stop."""
    import ray

    def stop() -> bool:
        try:
            return not stop_sign.empty()
        except ray.exceptions.RayError:  # the command is gone, and Ray ends its tasks
            return False

    yield from train_run(order, (ray.get(piece) for piece in pieces), stop)


def wants_gpu(run: PlannedRun) -> bool:
    """Whether a run asks for a GPU; raises an `AggMatchError` if it asks for a specific one."""
    device = run.settings.runtime.device
    if device.startswith("cuda:"):
        raise AggMatchError(f"On a cluster, Ray chooses the GPU, but runtime.device is '{device}'. Use --device cuda.")
    return device == "cuda"


def import_ray() -> Any:
    """Return the module ray; raise an `AggMatchError` if it is not installed."""
    try:
        import ray
        import ray.util.queue
        import ray.util.scheduling_strategies
    except ImportError:
        raise AggMatchError("Ray is not installed. Install it with: pip install 'aggmatch[cluster]'") from None
    return ray


def connect(ray: Any, address: str | None) -> None:
    """Connect to the cluster at an address, or start one on this machine."""
    address = address or os.environ.get("RAY_ADDRESS") or None
    if address and address.startswith("ray://"):
        raise AggMatchError(
            f"Cannot use {address}: the Ray client does not carry files back. Run this command on a machine of the "
            f"cluster, with --address auto."
        )
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster that starts here reports to nobody
    try:
        if address and ADDRESS.fullmatch(address):  # Ray itself tries for minutes
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), ANSWER).close()
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise AggMatchError(
            f"Cannot connect to Ray at {address or 'this machine'}: {reason}. Start it there with: ray start --head"
        ) from None
