"""The data sets of this package, and readers of their official files."""
