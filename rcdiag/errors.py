"""The one error that a user can fix; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RcdiagError(Exception):
    """What was wrong and where (`message`), and the way out (`hint`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        # Both go to the base class, so that the error survives pickling.
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


def one_of(option: str, value: str, known: Iterable[str]) -> str:
    """Give `value` back if it is known; RcdiagError with the nearest and all known ones if not."""
    names = list(known)
    if value in names:
        return value
    near = difflib.get_close_matches(value, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise RcdiagError(f"{option} {value}: not known", hint=f"{guess}one of {', '.join(names)}")


def setting(name: str, value: object = None) -> str:
    """Name a setting of rcdiag as a message does: in Python's spelling and the command line's."""
    option = f"--{name.replace('_', '-')}"
    if value is None:
        return f"`{name}` ({option})"
    return f"`{name}={value}` ({option} {value})"
