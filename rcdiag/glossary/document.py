"""An entry, or the list of all names, becomes one JSON document here."""

from __future__ import annotations

import importlib.metadata
import json
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from rcdiag.errors import without_secrets
from rcdiag.glossary.entry import Entry
from rcdiag.results import FORMAT_VERSION


def document(answer: Entry | dict[str, dict[str, str]]) -> str:
    """Return the JSON document of one entry, or of the list of all names by kind."""
    content: dict[str, Any] = {"names": answer}
    if isinstance(answer, Entry):
        content = {"entry": msgspec.to_builtins(answer)}
    head: dict[str, Any] = {
        "kind": "explain",
        "format_version": FORMAT_VERSION,
        "provenance": {
            "command": shlex.join([Path(sys.argv[0]).name, *map(without_secrets, sys.argv[1:])]),
            "versions": {"rcdiag": importlib.metadata.version("rcdiag")},
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
    }
    return json.dumps({**head, **content}, indent=1, allow_nan=False) + "\n"
