"""RcdiagError: an error that the user can fix; any other exception is a bug and has a traceback."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

from rcdiag.url_secrets import without_secrets


class RcdiagError(Exception):
    """An error that a user can fix: `message` says what is wrong, `hint` how to fix it."""

    def __init__(self, message: str, hint: str = "") -> None:
        # The base class gets both arguments, so that the error can be pickled.
        self.message = without_secrets(message)
        self.hint = without_secrets(hint)
        super().__init__(self.message, self.hint)

    def __str__(self) -> str:
        return self.message


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message; of one without a message its type."""
    return (str(error).strip() or repr(error)).splitlines()[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out: Python's, a GPU's (torch.OutOfMemoryError), or torch's on a CPU.

    torch's allocator on a CPU raises a plain RuntimeError.
    """
    by_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    return isinstance(error, MemoryError) or by_torch


def nearest(name: str, choices: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the choice most similar to a name, or None if none reaches the given similarity.

    A likeness of 1 means equality. Case is ignored, and `-` equals `_`.
    """
    by_folded = {_folded(choice): choice for choice in choices}
    near = difflib.get_close_matches(_folded(name), by_folded, n=1, cutoff=likeness)
    return by_folded[near[0]] if near else None


def _folded(name: str) -> str:
    return name.lower().replace("-", "_")


def did_you_mean(name: str, choices: Iterable[str], likeness: float = 0.6) -> str:
    """Return the beginning of a hint, `did you mean NEAREST? `, or "" if nothing is similar."""
    near = nearest(name, choices, likeness)
    return f"did you mean {near}? " if near else ""


def one_of(name: str, value: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of the choices; otherwise raise an error that lists them."""
    names = list(choices)
    if value in names:
        return value
    guess = did_you_mean(value, names)
    raise RcdiagError(f"{name} {value}: not known", hint=f"{guess}one of {', '.join(names)}")


def setting(name: str, value: object = None, option: str = "") -> str:
    """Return a setting as messages write it: in Python's spelling and the command line's.

    `option` is the option's name if it differs from the Python name.
    """
    option = option or f"--{name.replace('_', '-')}"
    if value is None:
        return f"`{name}` ({option})"
    return f"`{name}={value}` ({option} {value})"


# The text that `setting` writes: Python's spelling, then the command line's in brackets.
_BOTH_SPELLINGS = re.compile(r"`[^`\n]*` \((--[^()`\n]*)\)")


def on_command_line(text: str) -> str:
    """Return a message with its settings as options only: `--loss NAME`, without Python's form."""
    return _BOTH_SPELLINGS.sub(r"\1", text)


def mapping_setting(name: str, values: Mapping[str, object], option: str) -> str:
    """Return a setting that maps names to values: a dict in Python, one option for each pair."""
    options = " ".join(f"{option} {key}={value}" for key, value in values.items())
    return f"`{name}={dict(values)}` ({options})"
