"""Data sets as uint8 tensors, and the choice of labels; the readers are imported when a data set is loaded."""

from aggmatch.data.draw import draw_split, make_split
from aggmatch.data.images import Archive, DataSet, Images, Source
from aggmatch.data.registry import SOURCES, is_own_images, load, load_for, locate
from aggmatch.data.splits import DataSettings, Split, drawn_settings

__all__ = [
    "SOURCES",
    "Archive",
    "DataSet",
    "DataSettings",
    "Images",
    "Source",
    "Split",
    "draw_split",
    "drawn_settings",
    "is_own_images",
    "load",
    "load_for",
    "locate",
    "make_split",
]
