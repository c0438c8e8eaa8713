"""Benchmarks of a training step on this machine: time, memory, stages, and a lower bound of the time."""
