"""Trained models: load, predict, evaluate and export them."""

from aggmatch.inference.model import Snapshot, TrainedModel

__all__ = ["Snapshot", "TrainedModel"]
