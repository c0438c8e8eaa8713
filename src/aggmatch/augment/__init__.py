"""Views of images: random augmentations of whole batches, computed on the device of the images."""

from aggmatch.augment.views import VIEWS, Augmenter, View, ViewSettings, check_images

__all__ = ["VIEWS", "Augmenter", "View", "ViewSettings", "check_images"]
