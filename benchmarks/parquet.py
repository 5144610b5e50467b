"""Encodings of trajectory tables: size on disk and time to read, compared in one run.

`python benchmarks/parquet.py` (or `make bench`) writes the same generated table of 20 M tokens in
every encoding, reads it back, prints a table and stores it in `benchmarks/results/parquet.json`.
Log-probs are those of a peaked policy (log-uniform surprisal) plus small differences between two
policies. All of them differ, so that nothing compresses better than in a real dump.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402
from rcdiag.table.opening import open_table  # noqa: E402
from rcdiag.table.writer import VALUES_PER_ROW_GROUP, encodings  # noqa: E402

TOKENS = 20_000_000
LOG_PROBS = ["rollout_log_probs", "old_log_probs"]
ENCODINGS: dict[str, Callable[[pa.Schema], dict[str, Any]]] = {
    "snappy, dictionaries (pyarrow's default)": lambda schema: {"compression": "snappy"},
    "zstd, dictionaries": lambda schema: {"compression": "zstd", "compression_level": 3},
    "zstd, plain floats": lambda schema: {
        **encodings(schema),
        "use_byte_stream_split": False,
    },
    "zstd, byte-stream-split floats (rcdiag)": encodings,
}


def table() -> pa.Table:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6.0, 1.0, TOKENS // 600), 1, 8_000).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    count = int(offsets[-1])
    surprisal = 10.0 ** random.uniform(-6, 1, count)
    other = surprisal * np.exp(random.normal(0, 0.01, count))

    def lists(values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, pa.array(values))

    return pa.table(
        {
            "response_ids": lists((32_000 * random.random(count) ** 3).astype(np.int32)),
            "response_mask": lists(np.ones(count, np.uint8)),
            "rollout_log_probs": lists((-surprisal).astype(np.float32)),
            "old_log_probs": lists((-other).astype(np.float32)),
        }
    )


def seconds_to_read(path: Path, names: list[str]) -> float:
    """Return the shortest of three passes through rcdiag's own reader, batch by batch."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        for batch in open_table(path).batches(names):
            assert batch.table.num_rows
        found.append(time.perf_counter() - start)
    return min(found)


def main() -> None:
    data = table()
    tokens = len(data["response_ids"].combine_chunks().values)
    rows = max(int(VALUES_PER_ROW_GROUP * data.num_rows / tokens), 1)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        for name, options in ENCODINGS.items():
            start = time.perf_counter()
            pq.write_table(data, path, row_group_size=rows, **options(data.schema))
            entry = {
                "encoding": name,
                "bytes_per_token": round(path.stat().st_size / tokens, 2),
                "write_s": round(time.perf_counter() - start, 2),
                "read_all_mtok_per_s": round(
                    tokens / 1e6 / seconds_to_read(path, data.column_names)
                ),
                "read_log_probs_mtok_per_s": round(tokens / 1e6 / seconds_to_read(path, LOG_PROBS)),
            }
            results.append(entry)
            everything, alone = entry["read_all_mtok_per_s"], entry["read_log_probs_mtok_per_s"]
            print(
                f"{name:42} {entry['bytes_per_token']:>6.2f} B/token   write {entry['write_s']} s"
                f"   read all {everything} M tokens/s   log-probs alone {alone} M tokens/s",
                flush=True,
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    store(
        RESULTS / "parquet.json",
        {
            "tokens": tokens,
            "peak_memory_mb_with_the_generated_table": peak,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
