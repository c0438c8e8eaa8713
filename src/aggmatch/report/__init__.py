"""Reports of stored runs: one HTML page, its figures, and explanations of single pseudo labels."""
