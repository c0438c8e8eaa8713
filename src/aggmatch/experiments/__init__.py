"""Experiments: several runs and what is learnt from them together."""
