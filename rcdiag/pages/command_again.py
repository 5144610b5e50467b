"""Command lines for the data of a result: its own with one more option, or a sweep."""

from __future__ import annotations

import shlex
from itertools import pairwise

from rcdiag.results import ScoreResult, SweepResult

MOST_FILES = 3  # files that a command names; more are written as DUMP
PLACE = "ROW"  # placeholder in the command, which the page's script replaces by the row
# Options that select the data and the pair, which `score` and `sweep` both have.
SHARED = ("--behavior", "--target", "--column", "--from", "--given", "--rows", "--seed")


def sweep_command(result: ScoreResult | SweepResult) -> str:
    """Return the command that sweeps the same data and pair.

    It has the data options of the result's own command line, or, for a result made in Python, the
    names of its files.
    """
    words = _words(result)
    if words[1:2] != [result.kind]:
        dump = [str(path) for path in result.provenance.get("dump", [])]
        return shlex.join(["rcdiag", "sweep", *(dump if len(dump) <= MOST_FILES else ["DUMP"])])
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    kept = list(words[2:options])
    for option, value in pairwise([*words[options:], ""]):
        name, equals, _ = option.partition("=")
        if name in SHARED:
            kept += [option] if equals else [option, value]
    return shlex.join(["rcdiag", "sweep", *kept])


def with_sequence(result: ScoreResult) -> str:
    """Return the command that makes the result again with the tokens of one more row.

    For a result made in Python it is a call of `rcdiag.score`.
    """
    words = _words(result)
    if words[1:2] != [result.kind]:
        return f"rcdiag.score(..., sequences=[{PLACE}])"
    named = [] if any(word.split("=")[0] == "--html" for word in words) else ["--html", "page.html"]
    forced = [] if "--force" in words else ["--force"]
    return shlex.join(["rcdiag", *words[1:], "--sequence", PLACE, *named, *forced])


def _words(result: ScoreResult | SweepResult) -> list[str]:
    """Return the words of the command line that made a result."""
    try:
        return shlex.split(str(result.provenance.get("command", "")))
    except ValueError:  # the document was edited by hand
        return []
