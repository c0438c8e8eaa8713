"""Image classification with very few labels."""

__version__ = "0.1.0"
