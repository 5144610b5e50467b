"""Stored results for tests: one of each kind, written by `make reports`, compressed."""

from __future__ import annotations

import lzma
from pathlib import Path

FOLDER = Path(__file__).parent


def stored(kind: str, version: int = 2) -> str:
    """Return the JSON document of a kind, written by the rcdiag of a format version."""
    return lzma.open(FOLDER / f"format_{version}" / f"{kind}.json.xz", "rt").read()
