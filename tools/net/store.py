"""The reference in one file: each document shape once, every number as float64, all under xz.

Documents of one table hold the same blocks whatever the trainer. As plain runs of float64 these
blocks are equal bytes, which xz stores once because its window covers the whole file.
"""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import numpy as np

from net.documents import Leaf, Leaves

NUMBER, TEXT, TRUTH, NOTHING = range(4)
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 28}]


def save(path: Path, about: dict[str, Any], by_command: dict[str, Leaves]) -> None:
    """Write the leaves of all commands."""
    paths = sorted({path for leaves in by_command.values() for path in leaves})
    numbers = {path: at for at, path in enumerate(paths)}
    texts: dict[str, int] = {}
    ids, counts, kinds, values = [], [], [], []
    for leaves in by_command.values():
        for leaf, items in leaves.items():
            ids.append(numbers[leaf])
            counts.append(len(items))
            for item in items:
                kind, value = _coded(item, texts)
                kinds.append(kind)
                values.append(value)
    header = {
        **about,
        "commands": {name: len(leaves) for name, leaves in by_command.items()},
        "paths": paths,
        "texts": list(texts),
        "leaves": len(ids),
        "values": len(values),
    }
    # Ids mostly count up, so most of their differences are equal.
    blocks = [
        np.diff(np.array(ids, "<i4"), prepend=np.int32(0)).astype("<i4"),
        np.array(counts, "<i4"),
        np.array(kinds, "u1"),
        np.array(values, "<f8"),
    ]
    body = json.dumps(header).encode() + b"\n" + b"".join(block.tobytes() for block in blocks)
    path.write_bytes(lzma.compress(body, filters=FILTERS))


def load(path: Path) -> tuple[dict[str, Any], dict[str, Leaves]]:
    """Return the facts about the stored run, and the leaves of its commands."""
    line, _, body = lzma.decompress(path.read_bytes()).partition(b"\n")
    header = json.loads(line)
    start = 0

    def block(kind: str, count: int) -> list:
        nonlocal start
        block_values = np.frombuffer(body, kind, count, start)
        start += block_values.nbytes
        is_first = kind == "<i4" and start == block_values.nbytes
        return (np.cumsum(block_values) if is_first else block_values).tolist()

    ids, counts = block("<i4", header["leaves"]), block("<i4", header["leaves"])
    kinds, values = block("u1", header["values"]), block("<f8", header["values"])
    by_command: dict[str, Leaves] = {}
    leaf = at = 0
    for name, size in header["commands"].items():
        by_command[name] = {}
        for number, count in zip(ids[leaf : leaf + size], counts[leaf : leaf + size], strict=True):
            items = zip(kinds[at : at + count], values[at : at + count], strict=True)
            by_command[name][header["paths"][number]] = [
                _read(kind, value, header["texts"]) for kind, value in items
            ]
            at += count
        leaf += size
    return header, by_command


def _coded(item: Leaf, texts: dict[str, int]) -> tuple[int, float]:
    if item is None:
        return NOTHING, 0.0
    if isinstance(item, bool):
        return TRUTH, float(item)
    if isinstance(item, str):
        return TEXT, float(texts.setdefault(item, len(texts)))
    return NUMBER, item


def _read(kind: int, value: float, texts: list[str]) -> Leaf:
    if kind == NOTHING:
        return None
    if kind == TRUTH:
        return bool(value)
    return texts[int(value)] if kind == TEXT else value
