"""Views of images: random augmentations of whole batches, computed on the device of the images."""
