"""The one exception a user is meant to read."""

from collections.abc import Iterable
from difflib import get_close_matches


class AggMatchError(Exception):
    """Something the caller can mend: what was wrong, the value, what is allowed, the next step.

    The command line prints it without a traceback and exits with 2.
    """


def unknown(kind: str, name: str, known: Iterable[str], see: str = "", owner: str = "") -> AggMatchError:
    """The error for a name that is not among the known ones (of an owner), with the closest match if there is one."""
    known = sorted(known)
    section = name[: name.rfind(".") + 1]  # that they share it makes no two names similar
    close = get_close_matches(name.removeprefix(section), [other.removeprefix(section) for other in known], 1)
    hint = f" Did you mean '{section}{close[0]}'?" if close else f" Known: {', '.join(known)}."
    return AggMatchError(
        f"Unknown {kind} '{name}'{f' of {owner}' if owner else ''}.{hint}" + (f" See: {see}" if see else "")
    )
