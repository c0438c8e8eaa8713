"""The command line: parse, call, print. Nothing heavy is imported before a command needs it."""

import sys

from aggmatch.cli import training, experiments, analysis, bench  # isort: skip - the order of commands in the help
from aggmatch.cli.app import app
from aggmatch.errors import AggMatchError

__all__ = ["analysis", "app", "bench", "experiments", "main", "training"]


def main() -> None:
    """Entry point: errors a user can mend are one sentence and exit code 2."""
    import warnings

    warnings.showwarning = lambda message, *_args, **_kwargs: print(f"Warning: {message}", file=sys.stderr)
    try:
        app()
    except AggMatchError as error:
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.exit(141)
