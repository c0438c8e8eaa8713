"""What is on disk: safe writing and reading of files, cached arrays, and the log of labels."""
