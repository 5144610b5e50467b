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


def one_of(option: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is a choice; else raise with the nearest and all choices."""
    names = list(choices)
    if value in names:
        return value
    near = difflib.get_close_matches(value, names, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    raise RcdiagError(f"{option} {value}: not known", hint=f"{guess}one of {', '.join(names)}")
