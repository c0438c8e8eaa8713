"""The command line: parse, call, print. Slow modules are imported only by the command that needs them."""

from aggmatch.cli import train, page, labels, inference, experiments, report, bench  # isort: skip - help's order
from aggmatch.cli.app import app, main

__all__ = ["app", "bench", "experiments", "inference", "labels", "main", "page", "report", "train"]
