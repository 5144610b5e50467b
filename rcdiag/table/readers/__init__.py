"""Readers know the formats that a dump may have on disk; all but parquet are converted to it.

To add a format: a file with a `Reader`, and its name in `READERS`; or `READERS.add(...)` in a
package of your own (entry-point group `rcdiag.plugins`).
"""

from __future__ import annotations

from rcdiag.registry import Registry
from rcdiag.table.readers.nemo_rl import NEMO_RL
from rcdiag.table.readers.parquet import PARQUET
from rcdiag.table.readers.reader import Reader
from rcdiag.table.readers.sglang import SGLANG
from rcdiag.table.readers.vllm import VLLM

READERS: Registry[Reader] = Registry("format", (PARQUET, NEMO_RL, VLLM, SGLANG))
