"""The one exception a user is meant to read."""

from collections.abc import Iterable
from difflib import get_close_matches


class AggMatchError(Exception):
    """Something the caller can mend: what was wrong, the value, what is allowed, the next step.

    The command line prints it without a traceback and exits with 2.
    """


def unknown(kind: str, name: str, known: Iterable[str], see: str = "") -> AggMatchError:
    """The error for a name that is not among the known ones, with the closest match if there is one."""
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else f" Known: {', '.join(known)}."
    return AggMatchError(f"Unknown {kind} '{name}'.{hint}" + (f" See: {see}" if see else ""))
