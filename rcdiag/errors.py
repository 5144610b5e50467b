"""A user can fix one kind of error; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RcdiagError(Exception):
    """An error that a user can fix: what was wrong and where (`message`), the way out (`hint`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        # Both go to the base class, so that the error survives pickling.
        super().__init__(message, hint)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return the value of a setting if it is a choice; else raise with the nearest and all."""
    names = list(choices)
    if value in names:
        return value
    near = difflib.get_close_matches(value, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise RcdiagError(f"{name} {value}: not known", hint=f"{guess}one of {', '.join(names)}")


def setting(name: str, value: object = None, option: str = "") -> str:
    """Name a setting of rcdiag as a message does: in Python's spelling and the command line's.

    `option` is that of the command line where it has another name.
    """
    option = option or f"--{name.replace('_', '-')}"
    if value is None:
        return f"`{name}` ({option})"
    return f"`{name}={value}` ({option} {value})"
