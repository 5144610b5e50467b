"""The pass over tables of 1 M, 10 M and 100 M tokens, compared with the minimum of any pass.

`python benchmarks/mismatch.py` (or `make bench`) writes each table to disk and measures on it, one
after the other and each in its own process:

- reading: only both log-prob columns, by pyarrow
- plain numpy: k1, k2, k3, the effective sample size of tokens, and the summed log-ratio of every
  sequence, vectorised over the batches that pyarrow reads, on one thread
- suite: all metrics of rcdiag with their intervals
- score: `rcdiag score`, which adds the profiles, figures, diagnosis and all presets of the newest
  verl, and writes the result
- page: the same with the page

It prints a table and stores it in `benchmarks/results/mismatch.json`. Seconds are those of the
whole process, imports included; `cpu` is the processor time of both cores, which depends less on
other programs than wall-clock time; memory is the peak resident set. Sizes given on the command
line are measured and not stored. The last number compares reading 8 bytes per token with the speed
of copying memory.
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

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402
from rcdiag.table.writer import TableWriter  # noqa: E402

SIZES = (1_000_000, 10_000_000, 100_000_000)
GROUP, STEPS = 8, 10
CHUNK = 1_000_000

START = """
import json, resource, sys, time
start = time.perf_counter()
"""
READING = """
import pyarrow.parquet as pq
COLUMNS = ["rollout_log_probs", "old_log_probs"]
for batch in pq.ParquetFile(sys.argv[1]).iter_batches(1_600, columns=COLUMNS):
    pass
"""
NUMPY = """
import numpy as np
import pyarrow.parquet as pq
COLUMNS = ["rollout_log_probs", "old_log_probs"]
tokens = k1 = k2 = k3 = total = squares = 0.0
sequences = []
for batch in pq.ParquetFile(sys.argv[1]).iter_batches(1_600, columns=COLUMNS):
    rollout, old = (batch.column(name) for name in COLUMNS)
    offsets = rollout.offsets.to_numpy()
    sampled, trained = (
        column.flatten().to_numpy().astype(np.float64) for column in (rollout, old)
    )
    log_ratio = trained - sampled
    ratio = np.exp(log_ratio)
    tokens += len(ratio)
    k1 -= log_ratio.sum()
    k2 += 0.5 * np.square(log_ratio).sum()
    k3 += (np.expm1(log_ratio) - log_ratio).sum()
    total += ratio.sum()
    squares += np.square(ratio).sum()
    sequences.append(np.add.reduceat(log_ratio, offsets[:-1] - offsets[0]))
numbers = {"k3": k3 / tokens, "ess": total**2 / (tokens * squares)}
"""
SUITE = """
from cli.process import keep_freed_memory
from rcdiag.diagnosis.guides import judged
from rcdiag.statistics.merging import merge, take_in
from rcdiag.statistics.pair import PolicyPair
from rcdiag.statistics.suite import Suite, SuiteState
from rcdiag.table.opening import open_table
from rcdiag.usecases.passes import Walk, token_batches
keep_freed_memory()
states = []
policies = ("rollout", "old")
for batch in token_batches(open_table(sys.argv[1]), Walk(policies=policies)):
    take_in(states, SuiteState.of(PolicyPair(batch, *policies)))
metrics = judged(Suite(merge(states)))
numbers = {"k3": metrics["k3_kl"].value, "ess": metrics["ess_token"].value}
"""
SCORE = """
from cli.main import main
arguments = ["score", sys.argv[1], "-q", "--force", "--result", sys.argv[2]]
sys.argv = ["rcdiag", *arguments, *(["--html", sys.argv[3]] if len(sys.argv) > 3 else [])]
try:
    main()
except SystemExit as stopped:
    assert not stopped.code, stopped.code
"""
END = """
usage = resource.getrusage(resource.RUSAGE_SELF)
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
measured = {
    "seconds": round(time.perf_counter() - start, 3),
    "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
    "peak_memory_mb": int(status["VmHWM"].split()[0]) // 1024,
    "numbers": globals().get("numbers"),
}
print(json.dumps(measured))
"""


def write_table(path: Path, tokens: int) -> int:
    """Write a table of peaked policies with lognormal lengths and groups of GROUP rows.

    All log-probs differ, so that nothing compresses better than in a real dump.
    """
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
    """Return bytes per second, read plus written, of all cores copying arrays beyond any cache."""
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


def in_own_process(code: str, *arguments: Path) -> dict:
    """Return seconds, CPU seconds and peak memory of a process that runs the code."""
    command: list[str | Path] = [sys.executable, "-c", START + code + END, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout.strip().splitlines()[-1])


def run_rcdiag(table: Path, folder: Path) -> dict:
    """Measure `rcdiag score` on a table; result and page are written to `folder`."""
    return in_own_process(SCORE, table, folder / "result.json", folder / "page.html")


def measure(folder: Path, tokens: int, bandwidth: float) -> dict:
    path = folder / "table.parquet"
    count = write_table(path, tokens)
    result = folder / "result.json"
    parts = {
        "reading": in_own_process(READING, path),
        "plain numpy": in_own_process(NUMPY, path),
        "suite": in_own_process(SUITE, path),
        "score": in_own_process(SCORE, path, result),
        "page": run_rcdiag(path, folder),
    }
    plain, suite = (parts[name].pop("numbers") for name in ("plain numpy", "suite"))
    document = json.loads(result.read_text())
    assert document["num_tokens"] == count
    for name, metric in (("k3", "k3_kl"), ("ess", "ess_token")):
        value = document["mismatch"][metric]["value"]
        assert np.allclose([plain[name], suite[name]], value, rtol=1e-9), metric
    for each in folder.iterdir():
        each.unlink()
    for part in parts.values():
        part.pop("numbers", None)
        part["mtokens_per_s"] = round(count / part["seconds"] / 1e6, 3)
        for unit in ("seconds", "cpu_seconds"):
            part[f"{unit}_to_plain"] = round(part[unit] / parts["plain numpy"][unit], 2)
    page = parts["page"]
    return {
        "tokens": count,
        "sequences": document["num_sequences"],
        "seconds": page["seconds"],
        "peak_memory_mb": page["peak_memory_mb"],
        "mtokens_per_s": page["mtokens_per_s"],
        "share_of_memory_bandwidth": round(8 * count / page["seconds"] / bandwidth, 5),
        "parts": parts,
    }


def main() -> None:
    sizes = [int(float(text)) for text in sys.argv[1:]] or SIZES
    bandwidth = copy_bandwidth()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for tokens in sizes:
            entry = measure(Path(folder), tokens, bandwidth)
            results.append(entry)
            print(f"{entry['tokens']:,} tokens, {entry['sequences']:,} sequences")
            for name, part in entry["parts"].items():
                print(
                    f"  {name:12} {part['seconds']:>7.2f} s, {part['seconds_to_plain']:>6.2f} "
                    f"times plain numpy   cpu {part['cpu_seconds']:>7.2f} s, "
                    f"{part['cpu_seconds_to_plain']:>6.2f} times   "
                    f"{part['mtokens_per_s']:>7.2f} M tokens/s   "
                    f"peak {part['peak_memory_mb']:>5,} MB",
                    flush=True,
                )
    if not sys.argv[1:]:
        speed = round(bandwidth / 1e9, 1)
        store(RESULTS / "mismatch.json", {"copy_bandwidth_gb_per_s": speed, "results": results})


if __name__ == "__main__":
    main()
