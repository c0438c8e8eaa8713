"""The processes of one run: how they share values, and how they notice that one of them has stopped."""

from aggmatch.distributed.processes import Processes, joined, under_torchrun

__all__ = ["Processes", "joined", "under_torchrun"]
