"""Views of images, made in batches on their device."""

from aggmatch.augment.views import VIEWS, Augmenter, ViewSettings

__all__ = ["VIEWS", "Augmenter", "ViewSettings"]
