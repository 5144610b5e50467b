"""All presets of verl-0.9 on 65,536 sequences and on ten times as many, against verl's own code.

`python benchmarks/statistics.py` (or `make bench`) generates a table of about 67 M tokens with
lognormal lengths (cap 32 k), and runs
- `rcdiag score` on it in its own process: mismatch suite with intervals, all 19 presets with
  the trainer's metrics and rcdiag's own, from parquet to result file; then the same on ten
  copies of the file as one table;
- verl's own helper (package verl 0.9.1, downloaded), once per preset, on float32 tensors padded to
  the longest row as trainers hold them. All rows would need 8 GB per tensor, so it gets a random
  512 rows, padded to their own longest, and its time is scaled by the number of rows.
It prints a table and stores it in `benchmarks/results/statistics.json`. The floor is reading both
float32 log-prob columns once, 8 bytes a token, at the speed of copying with all cores.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

# Import from the repository root: `statistics.py` in this folder would hide the standard module.
sys.path[0] = str(Path(__file__).resolve().parents[1])

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import torch  # noqa: E402

from benchmarks import RESULTS, store  # noqa: E402
from benchmarks.mismatch import copy_bandwidth, run_rcdiag  # noqa: E402
from rcdiag.table.writer import TableWriter  # noqa: E402
from rcdiag.trainers import find_trainer  # noqa: E402
from tests.oracle.verl import ARGUMENTS, helper  # noqa: E402

SEQUENCES, GROUP, CAP = 65_536, 8, 32_768
CHUNK = 2_048
SUBSET = 512
COPIES = 10


def lengths_of(random: np.random.Generator, count: int) -> np.ndarray:
    return np.clip(random.lognormal(np.log(665.0), 0.93, count), 1, CAP).astype(np.int32)


def log_probs(random: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw log-probs of two peaked policies that differ most at rare tokens."""
    surprisal = 10.0 ** random.uniform(-6, 1, count)
    noise = random.normal(0, 0.03, count) * -np.expm1(-surprisal)
    return (-surprisal).astype(np.float32), np.minimum(noise - surprisal, 0).astype(np.float32)


def write_table(path: Path) -> int:
    random = np.random.default_rng(0)
    lists = {"response_ids": pa.int32(), "rollout_log_probs": pa.float32()}
    lists["old_log_probs"] = pa.float32()
    fields = [("group_id", pa.int64()), ("reward", pa.float64())]
    schema = pa.schema([*fields, *((name, pa.list_(kind)) for name, kind in lists.items())])
    tokens = 0
    with TableWriter(path, schema, {}) as writer:
        for first in range(0, SEQUENCES, CHUNK):
            lengths = lengths_of(random, CHUNK)
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            rollout, old = log_probs(random, int(offsets[-1]))
            ids = (32_000 * random.random(len(old)) ** 3).astype(np.int32)
            rows = np.arange(first, first + CHUNK)
            columns = [pa.array(rows // GROUP), pa.array((random.random(CHUNK) < 0.5) * 1.0)]
            columns += [
                pa.ListArray.from_arrays(offsets, pa.array(each)) for each in (ids, rollout, old)
            ]
            writer.write(pa.table(columns, schema=schema))
            tokens += len(old)
    return tokens


def trainer_seconds() -> dict:
    """Time verl's helper on SUBSET padded rows, once per preset."""
    random = np.random.default_rng(1)
    lengths = lengths_of(random, SUBSET)
    width = int(lengths.max())
    mask = torch.arange(width) < torch.tensor(lengths)[:, None]
    rollout, old = (torch.zeros(SUBSET, width) for _ in range(2))
    for row, length in enumerate(lengths):
        pair = log_probs(random, int(length))
        rollout[row, :length], old[row, :length] = map(torch.from_numpy, pair)
    trainer = find_trainer("verl-0.9")
    tensors = {"old_log_prob": old, "rollout_log_prob": rollout, "response_mask": mask.float()}
    compute = helper("verl-0.9").compute_rollout_correction_and_rejection_mask
    start = time.perf_counter()
    for preset in trainer.presets.values():
        config = {**trainer.settings, **preset}
        compute(**tensors, **{name: config[name] for name in ARGUMENTS if name in config})
    seconds = time.perf_counter() - start
    return {
        "rows": SUBSET,
        "padded_to": width,
        "tokens": int(lengths.sum()),
        "seconds": round(seconds, 3),
        "seconds_scaled_to_all_rows": round(seconds * SEQUENCES / SUBSET, 1),
    }


def main() -> None:
    bandwidth = copy_bandwidth()
    trainer = trainer_seconds()
    results = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokens = write_table(folder / "table_0.parquet")
        for copies in (1, COPIES):
            for copy in range(1, copies):
                os.link(folder / "table_0.parquet", folder / f"table_{copy}.parquet")
            found = run_rcdiag(folder / "table_*.parquet", Path(tempfile.mkdtemp(dir=folder)))
            seconds = found["seconds"]
            entry = {
                "tokens": copies * tokens,
                "sequences": copies * SEQUENCES,
                "seconds": round(seconds, 1),
                "peak_memory_mb": found["peak_memory_mb"],
                "mtokens_per_s": round(copies * tokens / seconds / 1e6, 2),
                "share_of_memory_bandwidth": round(8 * copies * tokens / seconds / bandwidth, 5),
                "times_the_trainer": round(
                    copies * trainer["seconds_scaled_to_all_rows"] / seconds, 1
                ),
            }
            results.append(entry)
            print(
                f"rcdiag, 19 presets and the suite: {entry['tokens']:>12,} tokens   "
                f"{entry['seconds']:>7.1f} s   peak {entry['peak_memory_mb']:>6,} MB   "
                f"{entry['share_of_memory_bandwidth']:.2%} of the memory bandwidth   "
                f"x{entry['times_the_trainer']} the trainer's helper",
                flush=True,
            )
    print(
        f"verl's helper, 19 presets: {trainer['rows']} rows padded to {trainer['padded_to']:,}   "
        f"{trainer['seconds']} s, or {trainer['seconds_scaled_to_all_rows']} s for all rows"
    )
    store(
        RESULTS / "statistics.json",
        {
            "copy_bandwidth_gb_per_s": round(bandwidth / 1e9, 1),
            "trainer": trainer,
            "results": results,
        },
    )


if __name__ == "__main__":
    main()
