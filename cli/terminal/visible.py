"""Make control characters in text from files visible, so that no terminal executes them."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# Unicode has a picture for each control character of ASCII; tab and line feed stay.
_PICTURES = {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
# 8-bit control characters, and marks of text direction, which would reorder words.
_OTHERS = [
    *range(0x80, 0xA0),
    0x200E,
    0x200F,
    0x061C,
    *range(0x202A, 0x202F),
    *range(0x2066, 0x206A),
]
# Surrogates, which no terminal can show.
_SURROGATES = range(0xD800, 0xE000)
TABLE: dict[int, int | str] = {
    **_PICTURES,
    0x7F: 0x2421,
    **dict.fromkeys(_OTHERS, REPLACEMENT),
    **dict.fromkeys(_SURROGATES, REPLACEMENT),
}


def visible(text: str) -> str:
    """Return the text with control characters replaced: escape sequences become visible."""
    return text if text.isascii() and text.isprintable() else text.translate(TABLE)
