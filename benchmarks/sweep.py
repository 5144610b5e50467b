"""A thousand thresholds of every family on 10 M tokens, against a loop over single thresholds.

`python benchmarks/sweep.py` (or `make bench`) generates a table of about 10 M tokens with lognormal
lengths (cap 32 k), and runs
- `rcdiag.sweep` on it with about 1,000 settings per family, in its own process, from parquet
  to the result: all families, the mismatch suite, the recommendation and the forecast;
- the single-threshold code that `rcdiag score` uses (rows of each pair, rcdiag's own metrics, the
  metrics of verl 0.9) for SAMPLED settings of each family, on pairs that are in memory already.
  The mean time of a family's settings, times the number of its settings, is summed over families.
  This extrapolates, since the loop itself would take hours.
It prints both and stores them in `benchmarks/results/sweep.json`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402
from rcdiag.corrections.correction import Correction  # noqa: E402
from rcdiag.statistics.merging import merged  # noqa: E402
from rcdiag.statistics.pair import PolicyPair, pair_of  # noqa: E402
from rcdiag.table.opening import open_table  # noqa: E402
from rcdiag.table.stream import read_trajectories  # noqa: E402
from rcdiag.table.writer import TableWriter  # noqa: E402
from rcdiag.trainers import find_trainer  # noqa: E402
from rcdiag.trainers.plan import Plan  # noqa: E402
from rcdiag.usecases.corrected import (  # noqa: E402
    CorrectionRows,
    asked_by,
    correction_results,
)
from rcdiag.usecases.sweep.estimator_families import FAMILIES, settings  # noqa: E402
from rcdiag.usecases.sweep.run import sweep  # noqa: E402

TOKENS, GROUP, CAP, CHUNK = 10_000_000, 8, 32_768, 1_024
THRESHOLDS = 1000
SAMPLED = 2


def write_table(path: Path) -> int:
    """Write a table of two peaked policies that differ most at rare tokens."""
    random = np.random.default_rng(0)
    lists = {"response_ids": pa.int32(), "rollout_log_probs": pa.float32()}
    lists["old_log_probs"] = pa.float32()
    fields = [("group_id", pa.int64()), ("reward", pa.float64())]
    schema = pa.schema([*fields, *((name, pa.list_(kind)) for name, kind in lists.items())])
    tokens = first = 0
    with TableWriter(path, schema, {}) as writer:
        while tokens < TOKENS:
            lengths = np.clip(random.lognormal(np.log(665.0), 0.93, CHUNK), 1, CAP).astype(np.int32)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            surprisal = 10.0 ** random.uniform(-6, 1, offsets[-1])
            noise = random.normal(0, 0.03, offsets[-1]) * -np.expm1(-surprisal)
            ids = (32_000 * random.random(offsets[-1]) ** 3).astype(np.int32)
            rollout = (-surprisal).astype(np.float32)
            old = np.minimum(noise - surprisal, 0).astype(np.float32)
            rows = np.arange(first, first + CHUNK)
            columns = [pa.array(rows // GROUP), pa.array((random.random(CHUNK) < 0.5) * 1.0)]
            columns += [
                pa.ListArray.from_arrays(offsets, pa.array(each)) for each in (ids, rollout, old)
            ]
            writer.write(pa.table(columns, schema=schema))
            tokens, first = tokens + int(offsets[-1]), first + CHUNK
    return tokens


def peak_mb() -> int:
    """Return this process's peak memory in MB; `ru_maxrss` would include that of its parent."""
    status = Path("/proc/self/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) // 1024


def swept(path: Path) -> dict:
    """Measure a sweep in a process that does nothing else."""
    start = time.perf_counter()
    result = sweep(open_table(path), thresholds=THRESHOLDS)
    seconds = time.perf_counter() - start
    rows = {name: len(family.rows) for name, family in result.families.items()}
    return {
        "tokens": result.num_tokens,
        "sequences": result.num_sequences,
        "families": len(rows),
        "settings": sum(rows.values()),
        "seconds": round(seconds, 1),
        "peak_memory_mb": peak_mb(),
        "answer": result.recommendation.answer,
    }


def in_own_process(path: Path) -> dict:
    command = [sys.executable, __file__, "--swept", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout.strip().splitlines()[-1])


def single(correction: Correction, pairs: list[PolicyPair]) -> float:
    """Return the seconds of one setting with the single-threshold code."""
    start = time.perf_counter()
    plan = Plan(find_trainer("verl-0.9"), {"it": {}}, {"it": correction})
    wanted = asked_by(plan)
    total = merged(CorrectionRows.of({None: pair}, plan, wanted) for pair in pairs)
    assert total is not None
    correction_results(plan, total.whole)
    return time.perf_counter() - start


# verl-0.9 rejects by these statistics; it has no rejection by the ratio.
VERL_TESTS = ("k1", "k2", "k3")


def loop(path: Path) -> dict:
    """Extrapolate the loop's time from a few settings of each family that verl logs."""
    rows = read_trajectories(open_table(path), ("rollout", "old"))
    pairs = [pair_of(each, "rollout", "old") for each in rows]
    each_takes, total = {}, 0.0
    for name, family in FAMILIES.items():
        grid = settings(family, THRESHOLDS)
        if not all(
            one.statistic.endswith(VERL_TESTS) for one in family.correction(grid[0]).rejections
        ):
            continue
        sampled = [grid[len(grid) * (2 * at + 1) // (2 * SAMPLED)] for at in range(SAMPLED)]
        seconds = [single(family.correction(bounds), pairs) for bounds in sampled]
        each_takes[name] = round(float(np.mean(seconds)), 3)
        total += float(np.mean(seconds)) * len(grid)
    return {
        "sampled_settings_per_family": SAMPLED,
        "seconds_per_setting": each_takes,
        "seconds_scaled_to_all_settings": round(total, 1),
    }


def main() -> None:
    if sys.argv[1:2] == ["--swept"]:
        print(json.dumps(swept(Path(sys.argv[2]))))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        write_table(path)
        found = in_own_process(path)
        against = loop(path)
    times = round(against["seconds_scaled_to_all_settings"] / found["seconds"], 1)
    print(
        f"rcdiag sweep: {found['settings']:,} settings of {found['families']} families on "
        f"{found['tokens']:,} tokens   {found['seconds']} s   peak {found['peak_memory_mb']:,} MB\n"
        f"one by one: {against['seconds_scaled_to_all_settings']:,} s (scaled from {SAMPLED} "
        f"settings of each family)   x{times}"
    )
    store(
        RESULTS / "sweep.json",
        {
            "sweep": found,
            "loop": against,
            "times_faster": times,
        },
    )


if __name__ == "__main__":
    main()
