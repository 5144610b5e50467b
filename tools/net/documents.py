"""Result documents as flat leaves: a path and its values, free words reduced to being there."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from typing import Any

Leaf = float | str | bool | None
Leaves = dict[str, list[Leaf]]

# Not compared at all: where a result comes from, and on what it was made.
LEFT_OUT = {"provenance", "versions", "command", "time"}
# Free words: that they are there is compared, not what they say.
WORDS = {
    "about",
    "counted",
    "fix",
    "left_out",
    "message",
    "method",
    "missing",
    "named",
    "not_judged",
    "reasons",
    "refused",
    "said",
    "setup",
    "source",
    "tables",
    "title",
    "undefined",
    "unit",
}
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
SOME_WORDS = "…"
SENTENCE = 4  # from so many blanks on a text is words too, wherever it stands
TRACEBACK = 3  # stands for the exit code where the command has a bug
NO_DOCUMENT = 4  # the same where it says that it ran, and prints no JSON


def run(arguments: tuple[str, ...], *, text: bool) -> Leaves:
    """What a command prints, as leaves; the exit code is one of them."""
    from cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    before = sys.argv
    sys.argv = ["rcdiag", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as stopped:
        code = stopped.code or 0
    finally:
        sys.argv = before
    if "Traceback (most recent call last)" in err.getvalue():
        code = TRACEBACK
    found: Leaves = {"exit": [float(code)]}
    if code in (0, 1):
        try:
            found |= _text(out.getvalue()) if text else leaves(json.loads(out.getvalue()))
        except json.JSONDecodeError:
            return {"exit": [float(NO_DOCUMENT)]}
    return found


def _text(printed: str) -> Leaves:
    """Lines of a configuration; whole lines of comment are words."""
    return {"lines": [line for line in printed.splitlines() if not line.lstrip().startswith("#")]}


def leaves(document: Any) -> Leaves:
    """Every leaf of a document; a list of plain values is one leaf with several."""
    found: Leaves = {}
    _collect(document, "", "", found)
    return found


def _collect(value: Any, path: str, key: str, found: Leaves) -> None:
    if isinstance(value, dict):
        if not value:
            found[f"{path}/{{}}"] = []
        for name, each in value.items():
            if name not in LEFT_OUT:
                _collect(each, f"{path}/{name}" if path else name, name, found)
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        found[f"{path}/#"] = [float(len(value))]
        for name, each in zip(_names(value), value, strict=True):
            _collect(each, f"{path}/{name}", key, found)
    elif isinstance(value, list):
        found[f"{path}[]"] = [_plain(each, key) for each in value]
    else:
        found[path] = [_plain(value, key)]


def _names(items: list[Any]) -> list[str]:
    """What each item of a list is called: findings and rules by name, so that order may change."""
    for key in ("slug", "name"):
        names = [str(each.get(key)) for each in items if isinstance(each, dict) and each.get(key)]
        if len(names) == len(items):
            return [f"{name}~{names[:at].count(name)}" for at, name in enumerate(names)]
    return [str(at) for at in range(len(items))]


def _plain(value: Any, key: str) -> Leaf:
    if isinstance(value, str):
        words = key in WORDS or value.count(" ") >= SENTENCE
        return SOME_WORDS if words else SPECIAL.get(value, value)
    return value if value is None or isinstance(value, bool) else float(value)
