"""The exception for every error that a user can fix."""

from collections.abc import Iterable
from difflib import get_close_matches


class AggMatchError(Exception):
    """A user-fixable error: its message says what is wrong, the value, what is allowed and the next step.

    The command line prints the message without a traceback and exits with code 2. options: options of the command line
    that help; only the command line shows them, so the message itself must be clear without them.

    Example: `try: aggmatch.load("cifar11")`, then `except aggmatch.AggMatchError as error: print(error)`.
    """

    def __init__(self, message: str = "", *, options: str = "") -> None:
        super().__init__(message)
        self.options = options

    @property
    def with_options(self) -> str:
        """The message and the options that help, for the command line."""
        if not self.options:
            return str(self)
        end = "" if str(self).endswith((".", "?")) else "."
        return f"{self}{end} On the command line: {self.options}"


def unknown(kind: str, name: str, known: Iterable[str], see: str = "", owner: str = "") -> AggMatchError:
    """Return the error for a name that is not among the known ones, with the closest match if there is one.

    kind: what the name stands for, such as "method". see: a command that lists the known names. owner: whose names
    they are, if that is not clear.
    """
    known = sorted(known)
    section = name[: name.rfind(".") + 1]  # a shared section does not make two names similar
    close = get_close_matches(name.removeprefix(section), [other.removeprefix(section) for other in known], 1)
    hint = f" Did you mean '{section}{close[0]}'?" if close else f" Known: {', '.join(known)}."
    return AggMatchError(
        f"Unknown {kind} '{name}'{f' of {owner}' if owner else ''}.{hint}" + (f" See: {see}" if see else "")
    )
