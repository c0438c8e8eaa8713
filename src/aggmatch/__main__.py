"""Runs the command line as `python -m aggmatch`."""

from aggmatch.cli import main

main()
