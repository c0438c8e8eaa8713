"""A trained model behind HTTP, which answers requests one by one or many at a time."""
