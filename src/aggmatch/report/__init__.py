"""Figures, pages and explanations of runs, made from run folders and never from a live trainer."""
