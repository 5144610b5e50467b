"""Readers of the formats that a dump may have on disk; all but parquet are converted to parquet.

To add a format: a file with a `Reader`, and its name in `_shipped`; or `READERS.add(...)` in a
package of your own (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

from collections.abc import Sequence

from rcdiag.registry import Registry
from rcdiag.table.readers.reader import Reader


def _shipped() -> Sequence[Reader]:
    """Import the readers; not needed for a table that rcdiag wrote itself."""
    from rcdiag.table.readers.areal import AREAL
    from rcdiag.table.readers.art import ART
    from rcdiag.table.readers.atif import ATIF
    from rcdiag.table.readers.harbor import HARBOR
    from rcdiag.table.readers.json_lines import JSON_LINES
    from rcdiag.table.readers.ms_swift import MS_SWIFT
    from rcdiag.table.readers.nemo_gym import NEMO_GYM
    from rcdiag.table.readers.nemo_rl import NEMO_RL
    from rcdiag.table.readers.open_instruct import OPEN_INSTRUCT
    from rcdiag.table.readers.parquet import PARQUET
    from rcdiag.table.readers.prime_rl import PRIME_RL
    from rcdiag.table.readers.rllm import RLLM
    from rcdiag.table.readers.roll import ROLL
    from rcdiag.table.readers.sglang import SGLANG
    from rcdiag.table.readers.skyrl import SKYRL
    from rcdiag.table.readers.slime import MILES, SLIME
    from rcdiag.table.readers.tinker import TINKER
    from rcdiag.table.readers.trl import TRL
    from rcdiag.table.readers.verl import VERL
    from rcdiag.table.readers.verl_jsonl import VERL_JSONL
    from rcdiag.table.readers.vllm import VLLM
    from rcdiag.table.readers.xtuner import XTUNER

    with_token_ids = (
        PARQUET,
        VERL,
        NEMO_RL,
        SLIME,
        MILES,
        PRIME_RL,
        SKYRL,
        OPEN_INSTRUCT,
        ROLL,
        TINKER,
        NEMO_GYM,
        HARBOR,
        ATIF,
        RLLM,
        VLLM,
        SGLANG,
    )
    # Text-only formats, which a tokenizer encodes again.
    of_text = (VERL_JSONL, TRL, AREAL, XTUNER, MS_SWIFT, ART)
    return (*with_token_ids, *of_text, JSON_LINES)


READERS: Registry[Reader] = Registry("format", _shipped)
