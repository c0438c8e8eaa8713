"""Experiments: several runs, and what they show together."""
