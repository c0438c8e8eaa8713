"""`python -m aggmatch`."""

from aggmatch.cli import main

main()
