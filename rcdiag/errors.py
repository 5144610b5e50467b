"""A user can fix one kind of error; everything else is a bug and keeps its traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from rcdiag.url_secrets import without_secrets


class RcdiagError(Exception):
    """An error that a user can fix: what was wrong and where (`message`), the way out (`hint`)."""

    def __init__(self, message: str, hint: str = "") -> None:
        # Both go to the base class, so that the error survives pickling.
        self.message = without_secrets(message)
        self.hint = without_secrets(hint)
        super().__init__(self.message, self.hint)

    def __str__(self) -> str:
        return self.message


def nearest(name: str, choices: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the choice that looks most like a name, None where none has this likeness to it.

    A likeness of 1 is equality. Upper case, `-` and `_` make no difference.
    """
    by_folded = {_folded(choice): choice for choice in choices}
    near = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=likeness)
    return by_folded[near[0]] if near else None


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def did_you_mean(name: str, choices: Iterable[str], likeness: float = 0.6) -> str:
    """Return the beginning of a hint, `did you mean NEAREST? `; empty where nothing is near."""
    near = nearest(name, choices, likeness)
    return f"did you mean {near}? " if near else ""


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return the value of a setting if it is a choice; else raise with the nearest and all."""
    names = list(choices)
    if value in names:
        return value
    guess = did_you_mean(value, names)
    raise RcdiagError(f"{name} {value}: not known", hint=f"{guess}one of {', '.join(names)}")


def setting(name: str, value: object = None, option: str = "") -> str:
    """Name a setting of rcdiag as a message does: in Python's spelling and the command line's.

    `option` is that of the command line where it has another name.
    """
    option = option or f"--{name.replace('_', '-')}"
    if value is None:
        return f"`{name}` ({option})"
    return f"`{name}={value}` ({option} {value})"


# What `setting` writes: Python's spelling, then the command line's in brackets.
_BOTH_SPELLINGS = re.compile(r"`[^`\n]*` \((--[^()`\n]*)\)")


def on_command_line(text: str) -> str:
    """Return a message with its settings as options alone: `--loss NAME`, without Python's."""
    return _BOTH_SPELLINGS.sub(r"\1", text)


def mapping_setting(name: str, values: Mapping[str, object], option: str) -> str:
    """Name a setting that maps names to values: a dict in Python, an option for each pair."""
    options = " ".join(f"{option} {key}={value}" for key, value in values.items())
    return f"`{name}={dict(values)}` ({options})"
