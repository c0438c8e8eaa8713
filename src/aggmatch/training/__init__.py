"""Training: the run and its loop, one step, the optimizer, and the step as a CUDA graph."""
