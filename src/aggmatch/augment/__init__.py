"""Views of images, made in batches on their device."""

from aggmatch.augment.views import VIEWS, Augmenter, ViewSettings, check_images

__all__ = ["VIEWS", "Augmenter", "ViewSettings", "check_images"]
