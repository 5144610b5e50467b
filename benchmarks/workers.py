"""The pass of `rcdiag score` in one process and in worker processes, compared with another commit.

`python benchmarks/workers.py` (or `make bench`) writes a table of 20 M tokens and measures, in turn
and ROUNDS times, `rcdiag score` with all presets and the result file:

- before: the checkout of `--before COMMIT`, if one is given, on all cores
- after, with `--workers` 1, 2, ... up to the number of cores

It prints a table and stores it in `benchmarks/results/workers.json` with the machine and its load.
`seconds` is the shortest wall time of the whole process, imports included; `cpu_s` is the
processor time of all its processes, which depends less on other programs. Peaks are
resident sets, of the main process and of the largest worker. `--tokens N` measures another table
and stores nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(ROOT)

from benchmarks import RESULTS, store  # noqa: E402
from benchmarks.mismatch import write_table  # noqa: E402

TOKENS, ROUNDS = 20_000_000, 3


def peaks_of_session(session: int) -> dict[int, int]:
    """Return the peak resident set of every process of a session so far, in kB by its id."""
    found: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            if os.getsid(int(folder.name)) != session:
                continue
            lines = (folder / "status").read_text().splitlines()
        except OSError:
            continue  # it has ended
        found |= {int(folder.name): int(x.split()[1]) for x in lines if x.startswith("VmHWM")}
    return found


def measured(checkout: Path, table: Path, arguments: list[str]) -> dict[str, Any]:
    """Run `rcdiag score` once, in its own session, and monitor its processes."""
    out = table.with_name("result.json")
    command = [sys.executable, "-m", "cli.main", "score", str(table), "-q", "--force"]
    environment = {**os.environ, "PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled once
    before, start = os.times(), time.perf_counter()
    run = subprocess.Popen(
        [*command, "--result", str(out), *arguments],
        cwd=checkout,
        env=environment,
        start_new_session=True,
    )
    peaks: dict[int, int] = {}
    while run.poll() is None:
        for process, peak in peaks_of_session(run.pid).items():
            peaks[process] = max(peak, peaks.get(process, 0))
        time.sleep(0.05)
    seconds, after = time.perf_counter() - start, os.times()
    assert run.returncode == 0
    first = peaks.pop(run.pid)
    used = [now - then for now, then in zip(after[2:4], before[2:4], strict=True)]  # by children
    return {
        "seconds": round(seconds, 2),
        "cpu_s": round(sum(used), 2),
        "peak_mb": first // 1024,
        "peak_worker_mb": max(peaks.values(), default=0) // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="also measure this commit")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = folder / "table.parquet"
        tokens = write_table(table, options.tokens)
        variants: dict[str, tuple[Path, list[str]]] = {}
        if options.before:
            checkout = folder / "before"
            checkout.mkdir()
            archive = ["git", "archive", options.before, "rcdiag", "cli"]
            content = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(checkout)], input=content, check=True)
            variants["before"] = (checkout, [])
        for workers in range(1, cores + 1):
            variants[f"{workers} workers"] = (ROOT, ["--workers", str(workers)])
        runs: dict[str, list[dict[str, Any]]] = {variant: [] for variant in variants}
        for _ in range(ROUNDS):
            for variant, (checkout, arguments) in variants.items():
                runs[variant].append(measured(checkout, table, arguments))
    results = []
    for variant, rounds in runs.items():
        best = min(rounds, key=lambda one: one["seconds"])
        best["least_cpu_s"] = min(one["cpu_s"] for one in rounds)
        results.append({"variant": variant, **best})
        print("   ".join(f"{key} {value}" for key, value in results[-1].items()), flush=True)
    if options.tokens != TOKENS:
        return
    store(
        RESULTS / "workers.json",
        {
            "load": os.getloadavg()[1],
            "tokens": tokens,
            "before": options.before,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
