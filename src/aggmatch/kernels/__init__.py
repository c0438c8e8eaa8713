"""Triton kernels behind the functions that call them."""
