"""Inspect the instructions of a pickle, before or without loading it.

`check` refuses pickles with which a small file could use up memory or time: arguments longer than
the file, memo entries that were never set, keys that take forever to hash. `scanned` and
`number_behind` recognise formats by the names and texts in a pickle. Instructions:
https://github.com/python/cpython/blob/v3.13.0/Lib/pickletools.py
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterator

Bytes = bytes | memoryview

# Instruction -> size of its argument in bytes; a negative pickletools code stands for another rule.
SIZES = {ord(code.code): 0 if code.arg is None else code.arg.n for code in pickletools.opcodes}
# pickletools code of an argument that begins with its own length -> size of that length in bytes.
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
# A pseudo-instruction of `instructions`: a list of numbers, from its MARK to its APPENDS.
NUMBERS = 256
_NUMBERS = re.compile(
    rb"\((?:(?:M..)++|(?:K.)++|(?:G.{8})++|(?:J.{4})++|[N\x88\x89]++|\x95.{8})++e", re.DOTALL
)

# Texts of at most this many characters may be keys, by which a format is recognised.
LONGEST_TEXT = 64
# Limit on instructions, not counting numbers in lists: a sample of slime has about 200. A one-byte
# instruction may create a set of 216 bytes.
MOST_INSTRUCTIONS = 20_000_000
# Limit on bytes of numbers in lists. Python's number objects take up to twelve times as much.
MOST_BYTES_OF_NUMBERS = 2 << 30


class TooLargeError(ValueError):
    """A pickle that would take too much memory."""


def instructions(pickle: Bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each instruction with the start and end of its argument.

    Stops after STOP, at the end of a truncated pickle, or at an unknown instruction.
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
            # The argument consists of names, each ended by a newline, and is short.
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

    For every value on the stack, the nesting depth of tuples is tracked; 0 if it is not a tuple. A
    tuple of tuples is not allowed as a key of a dict or set: hashing ((x, x), (x, x)), where x is
    such a tuple again, takes twice as long per level, and 100,000 levels overflow the C stack.
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
                raise ValueError("a memo entry that is used before it is set")
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
            # A call may return one of its arguments, which are in a tuple.
            depth = max(stack[first:]) - 1 if code in CALLS else stack[first]
            stack[first:] = [max(depth, 0)]
        elif code == PROTOCOL:
            if start != 1 or not 2 <= pickle[start] <= 5:
                raise ValueError("a protocol other than 2 to 5")
        elif code not in NOTHING:
            raise ValueError("an instruction of an old or unknown protocol")
        if count >= MOST_INSTRUCTIONS:
            raise TooLargeError(f"more than {MOST_INSTRUCTIONS:,} values that are not numbers")
        if numbers > MOST_BYTES_OF_NUMBERS:
            raise TooLargeError(f"more than {MOST_BYTES_OF_NUMBERS >> 30} GB of numbers in lists")
    if code != STOP or end != len(pickle) or marks or len(stack) != 1:
        raise ValueError("it is truncated, or something follows its end")


def _check_keys(depths: list[int] | tuple[()]) -> None:
    if any(depth > 1 for depth in depths):
        raise ValueError("a key that is a tuple of tuples")


# Instructions that push a value that is not a tuple, or that push the empty tuple.
PUSHES = frozenset(b"N\x88\x89KMJG\x8aX\x8c\x8dCB\x8e\x96]}\x8f)c")
# Instructions that make a tuple -> its length; 0: all values since the mark.
TUPLES = {ord("t"): 0, 0x85: 1, 0x86: 2, 0x87: 3}
FROZENSET, SETITEM = 0x91, ord("s")
# Instructions that consume values since the mark; 1: each of them is hashed, 2: every second.
ITEMS = {ord("e"): 0, ord("u"): 2, 0x90: 1, FROZENSET: 1}
# Instructions without a mark -> by how many values they shorten the stack.
FEWER = {ord("a"): 1, SETITEM: 2, ord("R"): 1, 0x81: 1, 0x92: 2, ord("b"): 1, 0x93: 1, ord("Q"): 0}
CALLS = frozenset(b"R\x81\x92")
NOTHING = frozenset(b".\x95")


def scanned(pickle: bytes) -> Iterator[tuple[str, str]]:
    """Yield the names and short texts of a pickle, until it ends or is truncated.

    They are yielded as ("name", "module.name") and ("text", text); dict keys are among the texts.
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
    """Return the integer that a pickle stores right after a key; None if there is none."""
    found = False
    for code, start, end in instructions(pickle):
        if found and code in INTEGERS:
            return int.from_bytes(pickle[start:end], "little", signed=code == ord("J"))
        if not (found and code in PUTS):
            found = code in TEXTS and _text(pickle[start:end]) == key
    return None


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
