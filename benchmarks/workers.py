"""`rcdiag score` of a large table on one core and on several, compared with another commit.

`python -m benchmarks.workers --before COMMIT` writes a table of 20 M tokens and measures, in turn
and ROUNDS times, `rcdiag score` with all presets and the result file, each confined to one core, to
two, and to all: the checkout of COMMIT, if one is given, and this one.

It prints a table and stores it in `benchmarks/results/workers.json` with the machine and its load.
`seconds` is the shortest wall time of the whole process, imports included; `cpu_s` is the
processor time of all its processes, which depends less on other programs; `of_before` is the ratio
to the seconds of the other commit on as many cores. Peaks are resident sets, of the main process
and of the largest worker. `--tokens N` measures another table and stores nothing.
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


def measured(checkout: Path, table: Path, cores: list[int]) -> dict[str, Any]:
    """Run `rcdiag score` once on some cores, in its own session, and monitor its processes."""
    out = table.with_name("result.json")
    command = [sys.executable, "-m", "cli.main", "score", str(table), "-q", "--force"]
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are compiled once
    before, start = os.times(), time.perf_counter()
    run = subprocess.Popen(
        ["taskset", "--cpu-list", ",".join(map(str, cores)), *command, "--result", str(out)],
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


def summary(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the shortest times and the largest peaks of several rounds."""
    best = {name: min(one[name] for one in rounds) for name in ("seconds", "cpu_s")}
    peaks = {name: max(one[name] for one in rounds) for name in ("peak_mb", "peak_worker_mb")}
    return {**best, **peaks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", metavar="COMMIT", help="also measure this commit")
    parser.add_argument("--tokens", type=int, default=TOKENS)
    options = parser.parse_args()
    here = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = folder / "table.parquet"
        tokens = write_table(table, options.tokens)
        checkouts = {"now": ROOT}
        if options.before:
            checkout = folder / "before"
            checkout.mkdir()
            archive = ["git", "archive", options.before, "rcdiag", "cli"]
            content = subprocess.run(archive, cwd=ROOT, capture_output=True, check=True).stdout
            subprocess.run(["tar", "-x", "-C", str(checkout)], input=content, check=True)
            checkouts = {"before": checkout, **checkouts}
        numbers = sorted({1, 2, len(here)} & set(range(1, len(here) + 1)))
        runs: dict[tuple[str, int], list[dict[str, Any]]] = {
            (commit, cores): [] for cores in numbers for commit in checkouts
        }
        for _ in range(ROUNDS):
            for (commit, cores), rounds in runs.items():
                rounds.append(measured(checkouts[commit], table, here[:cores]))
    results = []
    for (commit, cores), rounds in runs.items():
        result = {"commit": commit, "cores": cores, **summary(rounds)}
        if options.before:
            before = min(one["seconds"] for one in runs["before", cores])
            result["of_before"] = round(result["seconds"] / before, 2)
        results.append(result)
        print("   ".join(f"{key} {value}" for key, value in result.items()), flush=True)
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
