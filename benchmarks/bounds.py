"""Tables of extreme shapes: seconds and peak memory of `rcdiag score` and `rcdiag compare`.

`python benchmarks/bounds.py` (or `make bench`) runs each shape in its own process, start-up
included, prints a table and stores it in `benchmarks/results/bounds.json`; `--only NAME` runs one
shape. For a shape that is refused, the table shows the error. `docs/limits.md` has the results.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402

LIMIT = 900.0

PROBE = """
import json, sys, time  # noqa: E402
import resource
start = time.perf_counter()
from cli.main import main  # noqa: E402
sys.argv = ["rcdiag", *sys.argv[1:], "-q"]
code = 0
try:
    main()
except SystemExit as stopped:
    code = stopped.code
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
peak = int(status["VmHWM"].split()[0]) // 1024
usage = resource.getrusage(resource.RUSAGE_SELF)
measured = {"exit_code": code, "seconds": round(time.perf_counter() - start, 1)}
measured |= {"cpu_seconds": round(usage.ru_utime + usage.ru_stime, 1), "peak_mb": peak}
print(json.dumps(measured))
"""


def table(rows: int, length: int, steps: int = 1, groups: int = 0, policies: int = 2) -> pa.Table:
    """Make a table of rows of one length, with `groups` prompt groups (0: no group column)."""
    draw = np.random.default_rng(0)
    tokens = rows * length
    offsets = np.arange(0, tokens + 1, length, dtype=np.int32)

    def lists(values: np.ndarray) -> pa.Array:
        return pa.ListArray.from_arrays(offsets, values)

    log_probs = -draw.exponential(1.0, tokens).astype(np.float32)
    names = ["rollout", "old", *(f"p{number:02d}" for number in range(policies - 2))]
    columns: dict[str, pa.Array] = {
        "response_ids": lists(draw.integers(0, 32_000, tokens, dtype=np.int32))
    }
    for name in names:
        noise = draw.normal(0, 0.01, tokens).astype(np.float32) if name != "rollout" else 0.0
        columns[f"{name}_log_probs"] = lists(np.minimum(log_probs + noise, 0).astype(np.float32))
    if steps > 1:
        columns["step"] = pa.array(np.arange(rows) * steps // rows)
    if groups:
        columns["group_id"] = pa.array(np.arange(rows) * groups // rows)
    return pa.table(columns)


SHAPES: dict[str, tuple[Callable[[], pa.Table], str]] = {
    "a row of 4 M tokens": (lambda: table(1, 4_000_000), "score"),
    "10 M rows of 1 token": (lambda: table(10_000_000, 1), "score"),
    "100,000 groups of 4 rows": (lambda: table(400_000, 10, groups=100_000), "score"),
    "1,000 steps of 32 rows": (lambda: table(32_000, 20, steps=1_000), "score"),
    "60 policies of 200 rows": (lambda: table(200, 50, policies=60), "compare"),
}


def measured(build: Callable[[], pa.Table], command: str) -> dict[str, object]:
    """Run a command on a table in its own process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        pq.write_table(build(), path)
        try:
            ran = subprocess.run(
                [sys.executable, "-c", PROBE, command, str(path)],
                capture_output=True,
                text=True,
                check=False,
                timeout=LIMIT,
            )
        except subprocess.TimeoutExpired:
            return {"error": f"no end after {LIMIT:.0f} s"}
    if not ran.stdout:
        return {"error": f"exit code {ran.returncode}: {ran.stderr.strip()[-200:]}"}
    numbers = json.loads(ran.stdout.splitlines()[-1])
    return numbers if not numbers["exit_code"] else {**numbers, "error": ran.stderr.strip()[-300:]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="the name of one shape, or a part of it")
    options = parser.parse_args()
    rows = {}
    for name, (build, command) in SHAPES.items():
        if options.only and options.only not in name:
            continue
        rows[name] = {"command": command, **measured(build, command)}
        print(f"{name:26} {rows[name]}", flush=True)
    if not options.only:
        store(RESULTS / "bounds.json", {"shapes": rows})


if __name__ == "__main__":
    main()
