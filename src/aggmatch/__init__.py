"""Image classification with very few labels."""
