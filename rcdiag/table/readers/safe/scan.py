"""A pickle is scanned for the names, texts and numbers in it; nothing is built of them."""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator

# Instruction -> the bytes of its argument, or one of pickletools' signs for another rule.
SIZES = {ord(code.code): 0 if code.arg is None else code.arg.n for code in pickletools.opcodes}
# Sign of an argument that says its own length first -> the bytes of that length.
LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
NAMES, NAME_ON_STACK, TEXTS, STOP = b"ci", ord("\x93"), b"X\x8c\x8d", ord(".")
# Instructions without a name or a text in them, which are passed over.
OTHERS = re.compile(
    b"(?:%s)*+"
    % b"|".join(
        re.escape(bytes([code])) + b"." * size
        for code, size in SIZES.items()
        if size >= 0 and code not in (NAME_ON_STACK, STOP)
    ),
    re.DOTALL,
)
# A whole number; what was read before may be remembered first.
NUMBER = re.compile(rb"(?:q.|r.{4}|\x94)?(K.|M.{2}|J.{4})", re.DOTALL)
LONGEST_TEXT = 64  # characters of a key


def scanned(pickle: bytes) -> Iterator[tuple[str, str]]:
    """Yield names and short texts, up to where the pickle ends or breaks off.

    Those are ("name", "module.name") and ("text", a key or another text).
    """
    for kind, text, _ in _held(pickle):
        yield kind, text


def number_behind(pickle: bytes, key: str) -> int | None:
    """Return the whole number that follows a text; None where there is none."""
    for kind, text, end in _held(pickle):
        if (kind, text) == ("text", key) and (found := NUMBER.match(pickle, end)):
            code, number = found[1][:1], found[1][1:]
            return int.from_bytes(number, "little", signed=code == b"J")
    return None


def _held(pickle: bytes) -> Iterator[tuple[str, str, int]]:
    """Yield kind and content of names and short texts, and where the instruction ends."""
    at, texts = 0, ["", ""]
    while (passed := OTHERS.match(pickle, at)) and passed.end() < len(pickle):
        code = pickle[passed.end()]
        bounds = _argument(pickle, passed.end() + 1, code)
        if bounds is None:
            return
        start, at = bounds
        if code in NAMES:
            yield "name", _text(pickle[start : at - 1]).replace("\n", "."), at
        elif code == NAME_ON_STACK:
            yield "name", ".".join(texts), at
        elif code in TEXTS and len(text := _text(pickle[start:at])) <= LONGEST_TEXT:
            texts = [texts[1], text]
            yield "text", text, at


def _argument(pickle: bytes, start: int, code: int) -> tuple[int, int] | None:
    """Return where an instruction's argument begins and ends; None where the pickle does."""
    size = SIZES.get(code)
    if size is None or code == STOP:
        return None
    end = start + size
    if size == pickletools.UP_TO_NEWLINE:
        end = start
        for _ in range(2 if code in NAMES else 1):
            end = pickle.find(b"\n", end) + 1
            if not end:
                return None
    elif size < 0:
        begins = start + LENGTHS[size]
        end = begins + int.from_bytes(pickle[start:begins], "little")
        start = begins
    return (start, end) if end <= len(pickle) else None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
