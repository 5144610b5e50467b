"""Unpacking of a page's packed texts in Python."""

from __future__ import annotations

import base64
import gzip

BASE_85 = str.maketrans(",:.", "<>&")


def unpacked(letters: str) -> str:
    """Return the text from the output of `packed`."""
    return gzip.decompress(base64.b85decode(letters.translate(BASE_85))).decode()
