"""Readers of the formats that a dump may have on disk; all but parquet are converted to parquet.

To add a format: a file with a `Reader`, and its name in FILES; or `READERS.add(...)` in a package
of your own (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator

from rcdiag.registry import Registry
from rcdiag.table.readers.reader import Reader

# The modules of the formats, in the order in which formats are tried and shown.
FILES = (
    "parquet",
    "verl",
    "nemo_rl",
    "slime",
    "prime_rl",
    "skyrl",
    "open_instruct",
    "roll",
    "tinker",
    "nemo_gym",
    "harbor",
    "atif",
    "rllm",
    "vllm",
    "sglang",
    # Text without token ids, which a tokenizer encodes again.
    "verl_jsonl",
    "trl",
    "areal",
    "xtuner",
    "ms_swift",
    "art",
    # Any other JSON lines.
    "json_lines",
)


def _shipped() -> Iterator[Reader]:
    """Import the readers; not needed for a table that rcdiag wrote itself."""
    for name in FILES:
        module = importlib.import_module(f"{__name__}.{name}")
        yield from (value for value in vars(module).values() if isinstance(value, Reader))


READERS: Registry[Reader] = Registry("format", _shipped)
