"""Damage of files: flipped, deleted and repeated bytes; changed JSON values."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

ODD: list[Any] = [None, True, "", "NaN", -1, 0, 2**31, 2**63, 10**400, -0.0, 1e308, [], [[]], {}]
ODD += [{"a": None}, "\ud800", "\x1b[31m[/x]<b>", "é" * 9, float("nan"), float("inf"), [[1], 2]]
WORDS = [b"\x00", b"\xff" * 8, b"[" * 3000, b"{" * 300, b"&a [*a]", b"*a", b"NaN", b"1e999", b'"']
WORDS += [b"9" * 5000, b"\xed\xa0\x80", b"\x1b[2J", b"!!python/object/apply:os.system [ls]", b"\n"]
WORDS += [b"../../", b"cos\nsystem\n(S'true'\ntR.", b"\x80\x04\x95", b": ", b"\t- ", b"<<: *a\n"]


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Return bytes with one to four kinds of damage."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        size = max(len(data), 1)
        # Footers of parquet and directories of zip files are at the end.
        near_end = draw.random() < 0.4
        at = draw.randrange(max(size - 1500, 0), size) if near_end else draw.randrange(size)
        kind = draw.randrange(8)
        if kind <= 2 and data:
            data[at] ^= 1 << draw.randrange(8)
        elif kind == 3 and data:
            data[at] = draw.randrange(256)
        elif kind == 4:
            del data[at : at + draw.choice((1, 2, 7, 64, size))]
        elif kind == 5:
            data[at:at] = draw.choice(WORDS)
        elif kind == 6:
            data[at:at] = data[at : at + draw.choice((1, 8, 200))]
        elif data:
            length = draw.choice((4, 8))
            data[at : at + length] = draw.randbytes(length)
    return bytes(data)


def mutated_json(content: bytes, draw: random.Random) -> bytes:
    """Return a JSON document, or JSON lines, with one to three changed values."""
    lines = content.splitlines() if content.count(b"}\n{") else [content]
    at = draw.randrange(len(lines))
    record = json.loads(lines[at])
    for _ in range(draw.choice((1, 1, 3))):
        holder, key = record, None
        for _ in range(draw.randrange(1, 9)):
            inner = holder if key is None else holder[key]
            if not isinstance(inner, (dict, list)) or not inner:
                break
            holder = inner
            key = (
                draw.choice(list(inner)) if isinstance(inner, dict) else draw.randrange(len(inner))
            )
        if key is None:
            break
        if draw.random() < 0.2:
            del holder[key]
        else:
            # A copy: later changes may be inside it, and must not change the list of odd values.
            holder[key] = copy.deepcopy(draw.choice(ODD))
    lines[at] = json.dumps(record).encode()
    return b"\n".join(lines) + b"\n"
