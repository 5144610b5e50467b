"""The whole mismatch suite on generated tables of 1 M, 10 M and 100 M tokens, intervals included.

`python benchmarks/mismatch.py` (or `make bench`) writes each table to disk, runs `rcdiag score` on
it in a process of its own, prints a table and stores it in `benchmarks/results/mismatch.json`.
Seconds are those of the whole command, start-up included; memory is its peak resident set. The
floor is reading both float32 log-prob columns once, 8 bytes a token; its share of the memory
bandwidth (measured here by copying an array with all cores) says how far from it the suite is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# The repository and not this folder, whose `statistics` would stand before Python's own.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks.scoring import machine  # noqa: E402
from rcdiag.table.writer import TableWriter  # noqa: E402

SIZES = (1_000_000, 10_000_000, 100_000_000)
GROUP, STEPS = 8, 10
CHUNK = 1_000_000

PROBE = """
import json, sys, time  # noqa: E402
start = time.perf_counter()
from cli.main import main  # noqa: E402
sys.argv = ["rcdiag", "score", sys.argv[1], "-q", "--result", sys.argv[2], "--html", sys.argv[3]]
try:
    main()
except SystemExit as stopped:
    assert not stopped.code, stopped.code
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
peak = int(status["VmHWM"].split()[0]) // 1024
print(json.dumps({"seconds": time.perf_counter() - start, "peak_mb": peak}))
"""


def write_table(path: Path, tokens: int) -> int:
    """Peaked policies, lognormal lengths, groups of GROUP; no two tokens alike."""
    random = np.random.default_rng(0)
    schema = pa.schema(
        {
            "sample_id": pa.string(),
            "group_id": pa.int64(),
            "step": pa.int64(),
            "reward": pa.float64(),
            "response_ids": pa.list_(pa.int32()),
            "rollout_log_probs": pa.list_(pa.float32()),
            "old_log_probs": pa.list_(pa.float32()),
        }
    )
    written = rows = 0
    with TableWriter(path, schema, {}) as writer:
        while written < tokens:
            lengths = np.clip(random.lognormal(6.0, 1.0, CHUNK // 600), 1, 8_000).astype(np.int32)
            count = int(lengths.sum())
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            surprisal = 10.0 ** random.uniform(-6, 1, count)
            noise = random.normal(0, 0.03, count) * -np.expm1(-surprisal)
            other = np.minimum(-surprisal + noise, 0.0)
            number = np.arange(rows, rows + len(lengths))

            def lists(values: np.ndarray, offsets=offsets) -> pa.Array:
                return pa.ListArray.from_arrays(offsets, pa.array(values))

            columns = [
                pa.array([f"s{each}" for each in number]),
                pa.array(number // GROUP),
                pa.array(np.minimum(written * STEPS // tokens, STEPS - 1) + 0 * number),
                pa.array((random.random(len(lengths)) < 0.5).astype(float)),
                lists((32_000 * random.random(count) ** 3).astype(np.int32)),
                lists((-surprisal).astype(np.float32)),
                lists(other.astype(np.float32)),
            ]
            writer.write(pa.table(columns, schema=schema))
            written, rows = written + count, rows + len(lengths)
    return written


def copy_bandwidth() -> float:
    """Bytes a second that all cores read and write together, copying arrays beyond any cache."""
    cores = os.cpu_count() or 1
    arrays = [(np.ones(1 << 25), np.empty(1 << 25)) for _ in range(cores)]
    best = 0.0
    with ThreadPoolExecutor(cores) as pool:
        for _ in range(5):
            start = time.perf_counter()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), arrays))
            seconds = time.perf_counter() - start
            best = max(best, 2 * sum(array.nbytes for array, _ in arrays) / seconds)
    return best


def run_rcdiag(table: Path, folder: Path) -> dict:
    """Seconds and peak memory of `rcdiag score` on a table; result and page go to `folder`."""
    command = [sys.executable, "-c", PROBE, table, folder / "result.json", folder / "page.html"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.strip().splitlines()[-1])


def measure(folder: Path, tokens: int, bandwidth: float) -> dict:
    path = folder / "table.parquet"
    count = write_table(path, tokens)
    found = run_rcdiag(path, folder)
    result = json.loads((folder / "result.json").read_text())
    assert result["num_tokens"] == count
    for each in folder.iterdir():
        each.unlink()
    seconds = found["seconds"]
    return {
        "tokens": count,
        "sequences": result["num_sequences"],
        "seconds": round(seconds, 2),
        "peak_memory_mb": found["peak_mb"],
        "mtokens_per_s": round(count / seconds / 1e6, 3),
        "share_of_memory_bandwidth": round(8 * count / seconds / bandwidth, 5),
    }


def main() -> None:
    sizes = [int(float(text)) for text in sys.argv[1:]] or SIZES
    bandwidth = copy_bandwidth()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for tokens in sizes:
            entry = measure(Path(folder), tokens, bandwidth)
            results.append(entry)
            print(
                f"{entry['tokens']:>12,} tokens   {entry['seconds']:>7.2f} s   "
                f"{entry['mtokens_per_s']:>6.3f} M tokens/s   peak {entry['peak_memory_mb']:>6,} MB"
                f"   {entry['share_of_memory_bandwidth']:.2%} of the memory bandwidth",
                flush=True,
            )
    document = {
        "machine": machine(),
        "date": time.strftime("%Y-%m-%d"),
        "copy_bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
        "results": results,
    }
    if not sys.argv[1:]:
        out = Path(__file__).parent / "results" / "mismatch.json"
        out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
