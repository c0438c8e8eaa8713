"""Trained models: load, predict, evaluate, export."""

from aggmatch.inference.model import Snapshot, TrainedModel

__all__ = ["Snapshot", "TrainedModel"]
