"""The command line: parse, call, print. Slow modules are imported only by the command that needs them."""

import sys
from typing import NoReturn

from aggmatch.cli import train, page, labels, inference, experiments, report, bench  # isort: skip - help's order
from aggmatch.cli.app import app
from aggmatch.console import complain, print_plainly
from aggmatch.errors import AggMatchError

__all__ = ["app", "bench", "experiments", "inference", "labels", "main", "page", "report", "train"]


def main() -> None:
    """Run the command line; an error that the user can fix is one sentence and exit code 2."""
    import warnings

    print_plainly(sys.stdout, sys.stderr)
    warnings.showwarning = lambda message, *_args, **_kwargs: complain(f"Warning: {message}")
    try:
        app()
    except AggMatchError as error:
        fail(error.with_options)
    except OSError as error:  # a path without permission, a full disk behind the output
        fail(f"Cannot use {error.filename or 'the output'}: {error.strerror}.")
    except RuntimeError as error:
        if not lacks_memory(error):
            raise
        fail("Out of memory. Try a smaller train.batch, method.slots or model.name (--set ...).")


def fail(message: str) -> NoReturn:
    """Print an error and exit with code 2."""
    complain(f"Error: {message}")
    sys.exit(2)


def lacks_memory(error: RuntimeError) -> bool:
    """Whether torch failed to allocate memory, on any device, or was asked for more than a machine can have."""
    sentences = ("can't allocate memory", "Storage size calculation overflowed")
    return type(error).__name__ == "OutOfMemoryError" or any(sentence in str(error) for sentence in sentences)
