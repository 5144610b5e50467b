"""Commands on the data of a result: the one that made it with one more option, and others."""

from __future__ import annotations

import shlex
from itertools import pairwise

from rcdiag.results import ScoreResult, SweepResult

MOST_FILES = 3  # of a command that is written out
PLACE = "ROW"  # stands for the row in the command, for the page's script to fill in


# Options that say which data is read and of which pair: other commands have them too.
SHARED = ("--behavior", "--target", "--column", "--from", "--given", "--rows", "--seed")


def of_same_data(result: ScoreResult | SweepResult, command: str) -> str:
    """Return another command on the data and the pair of a result that the command line made.

    Of other results it names the files.
    """
    words = _words(result)
    if words[1:2] != [result.kind]:
        dump = [str(path) for path in result.provenance.get("dump", [])]
        return shlex.join(["rcdiag", command, *(dump if len(dump) <= MOST_FILES else ["DUMP"])])
    options = next((at for at, word in enumerate(words) if word.startswith("-")), len(words))
    kept = list(words[2:options])
    for option, value in pairwise([*words[options:], ""]):
        name, equals, _ = option.partition("=")
        if name in SHARED:
            kept += [option] if equals else [option, value]
    return shlex.join(["rcdiag", command, *kept])


def with_sequence(result: ScoreResult) -> str:
    """Return the command that makes the result again with the tokens of one more row.

    A result that Python made is made again by a call.
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
    except ValueError:  # a document that was changed by hand
        return []
