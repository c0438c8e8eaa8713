"""Views of images, made in batches on their device."""

from aggmatch.augment.views import VIEWS, Augmenter, View, ViewSettings, check_images

__all__ = ["VIEWS", "Augmenter", "View", "ViewSettings", "check_images"]
