"""Data sets as uint8 tensors, the choice of labels, and endless streams of indices."""

from aggmatch.data.download import fetch
from aggmatch.data.folder import decode_all, find_images, read_labeled
from aggmatch.data.images import Archive, DataSet, Images, Source
from aggmatch.data.sources import SOURCES, is_folder, load, load_for, locate
from aggmatch.data.splits import DataSettings, Split, draw_split, drawn_settings, make_split
from aggmatch.data.streams import BalancedStream, IndexStream, check_balance

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
    "check_balance",
    "decode_all",
    "draw_split",
    "drawn_settings",
    "fetch",
    "find_images",
    "is_folder",
    "load",
    "load_for",
    "locate",
    "make_split",
    "read_labeled",
]
