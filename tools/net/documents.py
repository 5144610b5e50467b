"""Result documents as flat leaves, path -> values; of free text only its presence is kept."""

from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from typing import Any

Leaf = float | str | bool | None
Leaves = dict[str, list[Leaf]]

# Not compared: the origin of a result, the machine it was made on, and paths in this run's
# temporary folder.
LEFT_OUT = {"provenance", "versions", "command", "time", "first_places"}
# Free text: its presence is compared, not its content.
WORDS = {
    "about",
    "fix",
    "message",
    "method",
    "missing",
    "named",
    "reasons",
    "refused",
    "said",
    "source",
    "tables",
    "title",
    "undefined",
    "unit",
}
SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
SOME_WORDS = "…"
SENTENCE = 4  # a text with at least this many spaces is free text, whatever its key
TRACEBACK = 3  # stands for the exit code if the command has a bug
NO_DOCUMENT = 4  # stands for the exit code if the command succeeds but prints no JSON


def run(arguments: tuple[str, ...], *, text: bool) -> Leaves:
    """Run a command and return its output as leaves; the exit code is one of them."""
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
    printed: Leaves = {"exit": [float(code)]}
    if code in (0, 1):
        try:
            printed |= (
                _text(out.getvalue()) if text else leaves(_format_1(json.loads(out.getvalue())))
            )
        except json.JSONDecodeError:
            return {"exit": [float(NO_DOCUMENT)]}
    return printed


def _format_1(document: Any) -> Any:
    """Return a document with the field names of format 1, in which the store is written.

    `rcdiag.results.older` lists the names that have changed since.
    """
    try:
        from rcdiag.results.older import RENAMED, renamed
    except ModuleNotFoundError:  # the code that made the store has no such module
        return document
    if not isinstance(document, dict) or document.get("format_version") in (None, 1):
        return document
    for version in sorted(RENAMED, reverse=True):
        # From the inside out, because the name of an outer field may change too.
        places = RENAMED[version].get(document["kind"], {}).items()
        for place, names in sorted(places, key=lambda item: -item[0].count("/")):
            back = {new: old for old, new in names.items()}
            document = renamed(document, place.split("/") if place else [], back)
    return {**document, "format_version": 1}


def _text(printed: str) -> Leaves:
    """Return the lines of a configuration; whole lines of comment are free text."""
    return {"lines": [line for line in printed.splitlines() if not line.lstrip().startswith("#")]}


def leaves(document: Any) -> Leaves:
    """Return every leaf of a document; a list of plain values is one leaf with several values."""
    collected: Leaves = {}
    _collect(document, "", "", collected)
    return collected


def _collect(value: Any, path: str, key: str, collected: Leaves) -> None:
    if isinstance(value, dict):
        if not value:
            collected[f"{path}/{{}}"] = []
        for name, item in value.items():
            if name not in LEFT_OUT:
                _collect(item, f"{path}/{name}" if path else name, name, collected)
    elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
        collected[f"{path}/#"] = [float(len(value))]
        for name, item in zip(_names(value), value, strict=True):
            _collect(item, f"{path}/{name}", key, collected)
    elif isinstance(value, list):
        collected[f"{path}[]"] = [_plain(item, key) for item in value]
    else:
        collected[path] = [_plain(value, key)]


def _names(items: list[Any]) -> list[str]:
    """Return a name for each item of a list: its slug or name, so that order may change."""
    for key in ("slug", "name"):
        names = [str(item.get(key)) for item in items if isinstance(item, dict) and item.get(key)]
        if len(names) == len(items):
            return [f"{name}~{names[:at].count(name)}" for at, name in enumerate(names)]
    return [str(at) for at in range(len(items))]


def _plain(value: Any, key: str) -> Leaf:
    if isinstance(value, str):
        words = key in WORDS or value.count(" ") >= SENTENCE
        return SOME_WORDS if words else SPECIAL.get(value, value)
    return value if value is None or isinstance(value, bool) else float(value)
