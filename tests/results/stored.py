"""Results that tests read: one of each kind, as `make reports` writes them, compressed."""

from __future__ import annotations

import lzma
from pathlib import Path

FOLDER = Path(__file__).parent


def stored(kind: str, version: int = 2) -> str:
    """The JSON of the document of a kind that the rcdiag of a format version wrote."""
    return lzma.open(FOLDER / f"format_{version}" / f"{kind}.json.xz", "rt").read()
