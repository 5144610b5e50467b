"""Texts stand in a page packed: LZMA, written in letters that HTML leaves alone.

LZMA looks back over the whole text, where gzip sees 32 kB: documents with all their digits are
smaller than gzip makes them with six. `script/packed.js` is the other side. The format is that of
the LZMA specification, https://github.com/ip7z/a7zip/blob/main/DOC/lzma.txt.
"""

from __future__ import annotations

import base64
import lzma
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase, digits

# The places of literals weigh the letter before them (lc) and nothing else: texts have no words
# of two or four bytes. The script counts on these three numbers.
CODER = {
    "id": lzma.FILTER_LZMA1,
    "preset": 9 | lzma.PRESET_EXTREME,
    "lc": 3,
    "lp": 0,
    "pb": 0,
}
# Python's base85 has <, > and &; these 85 letters mean nothing in HTML.
PYTHON_LETTERS = digits + ascii_uppercase + ascii_lowercase + "!#$%&()*+-;<=>?@^_`{|}~"
LETTERS = digits + ascii_uppercase + ascii_lowercase + "!#$%()*+,.:;=?@[]^_{|}~"
IN_HTML = bytes.maketrans(PYTHON_LETTERS.encode(), LETTERS.encode())


@dataclass(frozen=True, slots=True)
class Packed:
    """A compressed text in letters, and how many bytes of UTF-8 it unpacks to."""

    letters: str
    size: int


def packed(text: str) -> Packed:
    """Compress a text; equal texts have equal letters."""
    data = text.encode()
    made = lzma.compress(data, format=lzma.FORMAT_RAW, filters=[CODER])
    whole = made + bytes(-len(made) % 4)  # base85 writes four bytes at a time
    return Packed(base64.b85encode(whole).translate(IN_HTML).decode(), len(data))
