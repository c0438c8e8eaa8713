"""AggMatch: the method, its queue, and the aggregation of pseudo labels over it."""

from aggmatch.methods.aggmatch.method import AggMatch, Config

__all__ = ["METHOD", "AggMatch", "Config"]

METHOD = AggMatch
