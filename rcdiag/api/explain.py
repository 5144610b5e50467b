"""`rcdiag.explain`: what a name in a result, a configuration or an option means."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any, overload

import msgspec

from rcdiag.entry import Entry
from rcdiag.glossary import explain as entry_of
from rcdiag.glossary import names
from rcdiag.results import FORMAT_VERSION
from rcdiag.url_secrets import without_own_secrets


@overload
def explain(name: str) -> Entry: ...
@overload
def explain(name: None = None) -> dict[str, dict[str, str]]: ...
def explain(name: str | None = None) -> Entry | dict[str, dict[str, str]]:
    """Explain a name: formula, direction, healthy range, its name in each trainer.

    Without a name: all names with a line each, by kind. Upper case, spaces, `-` and `_` make no
    difference; for an unknown name RcdiagError with similar names.

    Args:
        name: a metric, setting, finding, cause, ...; all names without it.
    """
    return names() if name is None else entry_of(name)


def document(answer: Entry | dict[str, dict[str, str]]) -> str:
    """Return the JSON document of one entry, or of the list of all names by kind."""
    content: dict[str, Any] = {"names": answer}
    if isinstance(answer, Entry):
        content = {"entry": msgspec.to_builtins(answer)}
    head: dict[str, Any] = {
        "kind": "explain",
        "format_version": FORMAT_VERSION,
        "provenance": {
            "command": shlex.join(
                [Path(sys.argv[0]).name, *map(without_own_secrets, sys.argv[1:])]
            ),
            "versions": {"rcdiag": importlib.metadata.version("rcdiag")},
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    }
    return json.dumps({**head, **content}, indent=1, allow_nan=False) + "\n"
