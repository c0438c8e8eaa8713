"""Data sets as uint8 tensors, the choice of labels, and endless streams of indices."""

from aggmatch.data.download import fetch
from aggmatch.data.images import Archive, DataSet, Images, Source
from aggmatch.data.sources import SOURCES, load
from aggmatch.data.splits import DataSettings, Split, draw_split, make_split
from aggmatch.data.streams import BalancedStream, IndexStream

__all__ = [
    "SOURCES",
    "Archive",
    "BalancedStream",
    "DataSet",
    "DataSettings",
    "Images",
    "IndexStream",
    "Source",
    "Split",
    "draw_split",
    "fetch",
    "load",
    "make_split",
]
