"""The instructions of a pickle, looked at before or without loading it.

`check` refuses what makes a small file take all memory or time: arguments longer than the file,
places in the memo that were never filled, keys that take forever to hash. `scanned` and
`number_behind` tell formats apart by the names and texts in a pickle. Instructions:
https://github.com/python/cpython/blob/v3.13.0/Lib/pickletools.py
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator

Bytes = bytes | memoryview

# Instruction -> the bytes of its argument, or a sign of pickletools for another rule.
SIZES = {ord(code.code): 0 if code.arg is None else code.arg.n for code in pickletools.opcodes}
# Sign of an argument that begins with its own length -> the bytes of that length.
LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
MARK, STOP, PROTOCOL, STACK_GLOBAL = b"(.\x80\x93"
GLOBALS, INTEGERS, PUTS, GETS, TEXTS = map(
    frozenset, (b"ci", b"KMJ", b"qr\x94", b"hj", b"X\x8c\x8d")
)
# No instruction of a pickle, but of `instructions`: numbers from a mark to their list's APPENDS.
NUMBERS = 256
_NUMBERS = re.compile(
    rb"\((?:(?:M..)++|(?:K.)++|(?:G.{8})++|(?:J.{4})++|[N\x88\x89]++|\x95.{8})++e", re.DOTALL
)

# A text of at most this many characters may be a key, by which a format is known.
LONGEST_TEXT = 64
# Instructions, a list's numbers aside: a sample of slime takes some 200. An instruction of one
# byte may build a set of 216 bytes.
MOST_INSTRUCTIONS = 20_000_000
# Bytes of numbers in lists. Python's numbers take up to twelve times as much memory.
MOST_BYTES_OF_NUMBERS = 2 << 30


class TooLargeError(ValueError):
    """A pickle that takes more memory than it should."""


def instructions(pickle: Bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each instruction and where its argument begins and ends.

    It ends behind STOP, or where the pickle breaks off or holds an unknown instruction.
    """
    at, size = 0, len(pickle)
    while at < size:
        code = pickle[at]
        if code == MARK and (numbers := _NUMBERS.match(pickle, at)):
            yield NUMBERS, at, numbers.end()
            at = numbers.end()
            continue
        start = at + 1
        length = SIZES.get(code)
        if length is None:
            return
        if length == pickletools.UP_TO_NEWLINE:
            # Names end in a line each, and are not long.
            count = 2 if code in GLOBALS else 1
            lines = re.compile(rb"(?:[^\n]{0,1023}\n){%d}" % count).match(pickle, start)
            if lines is None:
                return
            at = lines.end()
        elif length < 0:
            begins = start + LENGTHS[length]
            at = begins + int.from_bytes(pickle[start:begins], "little")
            start = begins
        else:
            at = start + length
        if at > size:
            return
        yield code, start, at
        if code == STOP:
            return


def check(pickle: Bytes) -> None:
    """Raise ValueError for a pickle that is damaged, not of protocol 2 to 5, or beyond limits.

    For every value on the stack it is followed how deep tuples nest in it: 0 for what is no tuple.
    A tuple that holds tuples is no key of a dict or set: the hash of ((x, x), (x, x)), with x such
    a tuple in turn, takes twice as long by every level, and 100,000 levels overflow the C stack.
    """
    stack: list[int] = []
    marks: list[int] = []
    memo: list[int] = []
    numbers = end = 0
    code: int | None = None
    for count, (code, start, end) in enumerate(instructions(pickle)):
        if code == NUMBERS:
            numbers += end - start
        elif code in PUSHES:
            stack.append(0)
        elif code in PUTS:
            place = len(memo) if start == end else int.from_bytes(pickle[start:end], "little")
            if place > len(memo):
                raise ValueError("a place in the memo that comes too early")
            memo[place : place + 1] = [stack[-1]]
        elif code in GETS:
            stack.append(memo[int.from_bytes(pickle[start:end], "little")])
        elif code == MARK:
            marks.append(len(stack))
        elif code in TUPLES:
            first = marks.pop() if code == ord("t") else len(stack) - TUPLES[code]
            stack[first:] = [1 + max(stack[first:], default=0)]
        elif code in ITEMS:
            first = marks.pop()
            _check_keys(stack[first :: ITEMS[code]] if ITEMS[code] else ())
            del stack[first:]
            if code == FROZENSET:
                stack.append(1)
        elif code in FEWER:
            if code == SETITEM:
                _check_keys(stack[-2:-1])
            first = len(stack) - 1 - FEWER[code]
            # What a call returns may be one of its arguments, which are in a tuple.
            depth = max(stack[first:]) - 1 if code in CALLS else stack[first]
            stack[first:] = [max(depth, 0)]
        elif code == PROTOCOL:
            if start != 1 or not 2 <= pickle[start] <= 5:
                raise ValueError("a protocol that is none of 2 to 5")
        elif code not in NOTHING:
            raise ValueError("an instruction of an old or unknown protocol")
        if count >= MOST_INSTRUCTIONS:
            raise TooLargeError(f"more than {MOST_INSTRUCTIONS:,} values that are no numbers")
        if numbers > MOST_BYTES_OF_NUMBERS:
            raise TooLargeError(f"more than {MOST_BYTES_OF_NUMBERS >> 30} GB of numbers in lists")
    if code != STOP or end != len(pickle) or marks or len(stack) != 1:
        raise ValueError("it breaks off, or something follows its end")


def _check_keys(depths: list[int] | tuple[()]) -> None:
    if any(depth > 1 for depth in depths):
        raise ValueError("a key that is a tuple of tuples")


# Instructions that put a value on the stack which is no tuple, or the empty one.
PUSHES = frozenset(b"N\x88\x89KMJG\x8aX\x8c\x8dCB\x8e\x96]}\x8f)c")
# Instructions that make a tuple, of how many values; 0: of those from the mark.
TUPLES = {ord("t"): 0, 0x85: 1, 0x86: 2, 0x87: 3}
FROZENSET, SETITEM = 0x91, ord("s")
# Instructions that take the values from the mark, of which every one, or every second, is hashed.
ITEMS = {ord("e"): 0, ord("u"): 2, 0x90: 1, FROZENSET: 1}
# Instructions of no mark -> by how many values they make the stack shorter.
FEWER = {ord("a"): 1, SETITEM: 2, ord("R"): 1, 0x81: 1, 0x92: 2, ord("b"): 1, 0x93: 1, ord("Q"): 0}
CALLS = frozenset(b"R\x81\x92")
NOTHING = frozenset(b".\x95")


def scanned(pickle: bytes) -> Iterator[tuple[str, str]]:
    """Yield names and short texts, up to where the pickle ends or breaks off.

    Those are ("name", "module.name") and ("text", a key or another text).
    """
    texts = ["", ""]
    for code, start, end in instructions(pickle):
        if code in GLOBALS:
            yield "name", _text(pickle[start : end - 1]).replace("\n", ".")
        elif code == STACK_GLOBAL:
            yield "name", ".".join(texts)
        elif code in TEXTS and len(text := _text(pickle[start:end])) <= LONGEST_TEXT:
            texts = [texts[1], text]
            yield "text", text


def number_behind(pickle: bytes, key: str) -> int | None:
    """Return the whole number that follows a text; None where there is none."""
    found = False
    for code, start, end in instructions(pickle):
        if found and code in INTEGERS:
            return int.from_bytes(pickle[start:end], "little", signed=code == ord("J"))
        if not (found and code in PUTS):
            found = code in TEXTS and _text(pickle[start:end]) == key
    return None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
